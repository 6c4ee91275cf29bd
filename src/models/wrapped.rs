//! Names of a `state_dict` that was saved from within a wrapper of PyTorch.

/// What stands before every name because a wrapper's `state_dict` was saved and not the model's:
/// `module.` of `DataParallel` and `DistributedDataParallel`, `_orig_mod.` of `torch.compile`, or the
/// name under which a trainer keeps the model. `own` is the name of one of the model's weights.
///
/// *Returns* nothing where the model's own name is there, or the names do not have one beginning.
pub(crate) fn prefix<'a>(
    mut names: impl Iterator<Item = &'a str> + Clone,
    own: &str,
) -> Option<&'a str> {
    if names.clone().any(|name| name == own) {
        return None;
    }
    let before = |name: &'a str| {
        name.strip_suffix(own)
            .filter(|prefix| prefix.ends_with('.'))
    };
    let prefix = names.clone().find_map(before)?;
    names.all(|name| name.starts_with(prefix)).then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_one_of_all_names() {
        let of = |names: &[&'static str]| prefix(names.iter().copied(), "head.bias");
        assert_eq!(of(&["module.head.bias", "module.x"]), Some("module."));
        let both = ["_orig_mod.module.x", "_orig_mod.module.head.bias"];
        assert_eq!(of(&both), Some("_orig_mod.module."));
        assert_eq!(of(&["head.bias", "module.head.bias"]), None);
        assert_eq!(of(&["module.head.bias", "x"]), None);
        assert_eq!(of(&["ahead.bias"]), None);
        assert_eq!(of(&[]), None);
    }
}
