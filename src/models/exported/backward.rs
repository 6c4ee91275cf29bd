//! Detects custom gradients of a Python model, which are not in the file: it has only the forward.
//!
//! The stack trace that PyTorch saves with a node shows most of them: a `torch.autograd.Function` is
//! called by its `apply`, and a module with a backward hook passes its tensors through a view that is
//! not in the source. A hook on a tensor leaves no trace.

use super::program::Module;
use super::schema::Node;

/// A frame of a Python stack trace.
#[derive(Debug)]
struct Frame<'t> {
    /// `net.py:17`
    place: String,
    function: &'t str,
    /// The source line.
    source: &'t str,
}

/// Describes the custom gradient of a node, if its stack trace shows one.
pub(super) fn own_gradient(node: &Node, module: &Module) -> Option<String> {
    let frames = frames(node.metadata.get("stack_trace")?);
    if let Some(own) = function(&frames, module_depth(node)) {
        return Some(own);
    }
    let innermost = frames.last()?;
    let hooked =
        node.target == "torch.ops.aten.view_as.default" && !innermost.source.contains("view_as");
    let (path, class) = module.stack.last().filter(|_| hooked)?;
    Some(format!("a backward hook of the module `{path}` ({class})"))
}

/// Finds the function whose `forward` is called by `apply`: there is one more `forward` than modules.
fn function(frames: &[Frame<'_>], modules: usize) -> Option<String> {
    let mut forwards = 0;
    let mut caller: Option<&Frame<'_>> = None;
    for frame in frames {
        forwards += usize::from(frame.function == "forward");
        let name = caller.and_then(|own| own.source.split_once(".apply("));
        if let (Some(caller), Some((name, _))) = (caller, name)
            && frame.function == "forward"
            && forwards > modules
        {
            let is_part = |letter: char| letter.is_alphanumeric() || "_.".contains(letter);
            let name: String = name.chars().rev().take_while(|own| is_part(*own)).collect();
            let name: String = name.chars().rev().collect();
            return Some(format!(
                "the torch.autograd.Function `{name}` ({})",
                caller.place
            ));
        }
        caller = Some(frame);
    }
    None
}

/// Number of modules around a node.
fn module_depth(node: &Node) -> usize {
    let stack = node.metadata.get("nn_module_stack");
    stack.map_or(0, |own| {
        own.split(';').filter(|own| !own.is_empty()).count()
    })
}

/// Parses the frames of a stack trace, outermost first.
fn frames(trace: &str) -> Vec<Frame<'_>> {
    let mut all = Vec::new();
    let mut lines = trace.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some((path, rest)) = line
            .strip_prefix("File \"")
            .and_then(|own| own.split_once("\", line "))
        else {
            continue;
        };
        let (number, function) = rest.split_once(", in ").unwrap_or((rest, ""));
        let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
        all.push(Frame {
            place: format!("{file}:{number}"),
            function,
            source: lines
                .next_if(|line| !line.starts_with("File \""))
                .unwrap_or_default(),
        });
    }
    all
}
