//! Ids: small integers that the shells hand out and the pure crates compare.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One request of a client, unique within the process; never reused.
    RequestId, u64, "request-"
);
id!(
    /// One replica, unique within the process; a replica that leaves and joins again gets a new one.
    ReplicaId, u32, "replica-"
);
id!(
    /// A model name that replicas list (a base model or an adapter), interned by the shell.
    ModelId, u32, "model-"
);
