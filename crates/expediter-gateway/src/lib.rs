//! IO shell of the core: server, upstream client, probing, discovery, metrics, admin.

pub mod settings;
