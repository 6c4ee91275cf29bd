//! Prefixes of names in a `state_dict` saved from a wrapper of PyTorch.

/// Returns the prefix of all names in a `state_dict` saved from a wrapper instead of the model:
/// `module.` of `DataParallel` and `DistributedDataParallel`, `_orig_mod.` of `torch.compile`, or a
/// trainer's name of the model. `own` is the name of one of the model's weights.
///
/// *Returns* `None` if the model's own name exists, or if the names have no common prefix.
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
