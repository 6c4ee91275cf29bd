//! Names of tensors in shards, and conversion of types.

use safetensors::Dtype;
use tch::Kind;

use gpipe_torch::Role;

/// Prefix of a replica's number, for tensors of a single replica.
const OF_REPLICA: &str = "replica-";

/// Returns the name of a tensor in a shard.
pub(super) fn label(role: &Role, name: &str) -> String {
    match role {
        Role::Parameter => format!("parameters/{name}"),
        Role::Buffer => format!("buffers/{name}"),
        Role::Gradient => format!("gradients/{name}"),
        Role::Optimizer(part) => format!("optimizer/{name}/{part}"),
        Role::Outer(part) => format!("outer/{name}/{part}"),
        Role::Replica(replica, own) => format!("{OF_REPLICA}{replica}/{}", label(own, name)),
    }
}

/// Parses the result of [`label`].
pub(super) fn parse(label: &str) -> Option<(Role, &str)> {
    let (folder, name) = label.split_once('/')?;
    match folder {
        "parameters" => Some((Role::Parameter, name)),
        "buffers" => Some((Role::Buffer, name)),
        "gradients" => Some((Role::Gradient, name)),
        "optimizer" => {
            let (name, part) = name.rsplit_once('/')?;
            Some((Role::Optimizer(part.to_owned()), name))
        }
        "outer" => {
            let (name, part) = name.rsplit_once('/')?;
            Some((Role::Outer(part.to_owned()), name))
        }
        _ => {
            let replica = folder.strip_prefix(OF_REPLICA)?.parse().ok()?;
            let (own, name) = parse(name)?;
            // Replicas are not nested.
            let plain = !matches!(own, Role::Replica(..));
            plain.then(|| (Role::Replica(replica, Box::new(own)), name))
        }
    }
}

/// Both names of each type that shards support.
const TYPES: [(Kind, Dtype); 14] = [
    (Kind::Bool, Dtype::BOOL),
    (Kind::Uint8, Dtype::U8),
    (Kind::Int8, Dtype::I8),
    (Kind::Float8e5m2, Dtype::F8_E5M2),
    (Kind::Float8e4m3fn, Dtype::F8_E4M3),
    (Kind::Int16, Dtype::I16),
    (Kind::Half, Dtype::F16),
    (Kind::BFloat16, Dtype::BF16),
    (Kind::Int, Dtype::I32),
    (Kind::Float, Dtype::F32),
    (Kind::ComplexFloat, Dtype::C64),
    (Kind::Double, Dtype::F64),
    (Kind::Int64, Dtype::I64),
    (Kind::Float8e4m3fnuz, Dtype::F8_E4M3FNUZ),
];

pub(super) fn dtype(kind: Kind) -> Option<Dtype> {
    let found = TYPES.iter().find(|(own, _)| *own == kind);
    found.map(|(_, dtype)| *dtype)
}

pub(super) fn kind(dtype: Dtype) -> Option<Kind> {
    let found = TYPES.iter().find(|(_, own)| *own == dtype);
    found.map(|(kind, _)| *kind)
}

/// All types that shards support.
#[cfg(test)]
pub(super) fn kinds() -> impl Iterator<Item = Kind> {
    TYPES.iter().map(|(own, _)| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_read_as_it_was_made() {
        let roles = [
            Role::Parameter,
            Role::Buffer,
            Role::Gradient,
            Role::Optimizer("mean".to_owned()),
            Role::Outer("start".to_owned()),
            Role::Replica(1, Box::new(Role::Buffer)),
            Role::Replica(12, Box::new(Role::Optimizer("mean".to_owned()))),
        ];
        for role in roles {
            for name in ["block.0.weight", "odd/name/steps", ""] {
                let label = label(&role, name);
                assert_eq!(parse(&label), Some((role.clone(), name)), "{label}");
            }
        }
        for foreign in [
            "weight",
            "optimizer/weight",
            "other/weight",
            "replica-x/buffers/weight",
            "replica-1/replica-2/buffers/weight",
            "",
        ] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn types_have_the_same_size_in_both_worlds() {
        for (own, dtype) in TYPES {
            assert_eq!(own.elt_size_in_bytes() * 8, dtype.bitsize(), "{own:?}");
            assert_eq!(kind(dtype), Some(own));
        }
    }
}
