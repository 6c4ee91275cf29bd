//! What else PyTorch and others write, told apart by its first bytes or its entries.

use super::error::ExportedReason;

/// How a program comes about.
pub const EXPORT: &str = "in Python, write `save(export(model.train(), (x,), \
                                 dynamic_shapes=({0: Dim.AUTO},)), \"model.pt2\")` (from \
                                 torch.export import Dim, export, save), with x a batch of 2 samples \
                                 or more";

/// A pickle, with which files of `torch.save` of before 1.6 begin.
const PICKLE: [u8; 1] = [0x80];

/// The version with which ONNX files begin: field 1, a number.
const ONNX: [u8; 1] = [0x08];

/// What zip archives begin with, and so exported programs do.
pub(super) const ARCHIVE: [u8; 2] = *b"PK";

const CUT_OFF: &str = "begins as a zip archive, whose directory at the end is missing: the file is cut off; \
                       copy or download it again";

/// Whether only TorchScript has an entry of this name.
pub(super) fn is_of_script(name: &str) -> bool {
    below(name) == "constants.pkl" || below(name).starts_with("code/")
}

/// The name in the archive's only folder.
fn below(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, rest)| rest)
}

/// Why an archive with these entries is no exported program.
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

/// Why a file that begins so, and is no archive, is no exported program.
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
