//! Gradients of its own that a model has in Python: a file has the forward alone.
//!
//! What PyTorch writes beside a node, where in the source it was made, shows most of them: a
//! `torch.autograd.Function` is called by its `apply`, and a module with a backward hook passes its
//! tensors through a view that nobody wrote. A hook on a tensor leaves no trace.

use super::program::Module;
use super::schema::Node;

/// A call within another, as Python shows it.
#[derive(Debug)]
struct Frame<'t> {
    /// `net.py:17`
    place: String,
    function: &'t str,
    /// The line of the source.
    source: &'t str,
}

/// What gradient of its own a node has in Python, as far as its trace shows one.
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

/// The function whose `forward` is called by its `apply`: one `forward` more than there are modules.
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

/// How many modules a node lies in.
fn module_depth(node: &Node) -> usize {
    let stack = node.metadata.get("nn_module_stack");
    stack.map_or(0, |own| {
        own.split(';').filter(|own| !own.is_empty()).count()
    })
}

/// The calls of a trace, the outermost first.
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
