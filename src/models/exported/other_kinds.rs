//! Identifies other files of PyTorch and others, by their first bytes or their entries.

use super::error::ExportedReason;

/// How to export a program.
pub const EXPORT: &str = "in Python, write `save(export(model.train(), (x,), \
                                 dynamic_shapes=({0: Dim.AUTO},)), \"model.pt2\")` (from \
                                 torch.export import Dim, export, save), with x a batch of 2 samples \
                                 or more";

/// Beginning of a pickle, as `torch.save` wrote before 1.6.
const PICKLE: [u8; 1] = [0x80];

/// Beginning of ONNX files: field 1, an integer.
const ONNX: [u8; 1] = [0x08];

/// Beginning of zip archives, and so of exported programs.
pub(super) const ARCHIVE: [u8; 2] = *b"PK";

const CUT_OFF: &str = "begins as a zip archive, whose directory at the end is missing: the file is cut off; \
                       copy or download it again";

/// Whether an entry of this name occurs only in TorchScript.
pub(super) fn is_of_script(name: &str) -> bool {
    below(name) == "constants.pkl" || below(name).starts_with("code/")
}

/// Returns the name within the archive's single folder.
fn below(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, rest)| rest)
}

/// Explains why an archive with these entries is not an exported program.
pub(super) fn of_entries<'a>(names: impl Iterator<Item = &'a str>) -> ExportedReason {
    let (mut pickled, mut script) = (false, false);
    for name in names {
        pickled |= below(name) == "data.pkl";
        script |= is_of_script(name);
    }
    let kind = if script {
        "is a program of TorchScript (torch.jit.save), which is another format"
    } else if pickled {
        "was written by torch.save: it has weights or pickled objects, and no program"
    } else {
        "has no `archive_format`: it was not written by torch.export.save"
    };
    ExportedReason::Foreign(format!("{kind}; {EXPORT}"))
}

/// Explains why a file with this beginning, which is not an archive, is not an exported program.
pub(super) fn of_bytes(first: &[u8]) -> ExportedReason {
    if first.starts_with(&ARCHIVE) {
        return ExportedReason::Foreign(CUT_OFF.to_owned());
    }
    let kind = if first.is_empty() {
        "is empty"
    } else if first.starts_with(&ONNX) {
        "begins as a file of ONNX does, which is not read"
    } else if first.starts_with(&PICKLE) {
        "was written by an old torch.save: it has weights or pickled objects, and no program"
    } else if first.get(8) == Some(&b'{') {
        "is of safetensors: it has weights, and no program (--weights takes them)"
    } else {
        "is not a file of torch.export"
    };
    ExportedReason::Foreign(format!("{kind}; {EXPORT}"))
}
