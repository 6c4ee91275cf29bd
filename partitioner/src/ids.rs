//! Typed indices: no bare `usize` crosses a module border.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub usize);

        impl $name {
            /// The bare number, counted from 0.
            pub const fn index(self) -> usize {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A stage: consecutive layers on one device. With v chunks per device there
    /// are v·p stages, numbered along the model.
    StageId
}
id! {
    /// A micro-batch of the mini-batch.
    MicroId
}
id! {
    /// A layer of the model.
    LayerId
}
id! {
    /// A device (rank) of the pipeline.
    DeviceId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_prints_and_serializes_as_its_number() {
        assert_eq!(StageId(3).to_string(), "3");
        assert_eq!(format!("{:>3}", MicroId(7)), "  7");
        assert_eq!(serde_json::to_string(&DeviceId(2)).unwrap(), "2");
        assert_eq!(serde_json::from_str::<LayerId>("9").unwrap().index(), 9);
    }
}
