//! The host: what belongs to it and to its other users.

pub(crate) mod aside;
pub(crate) mod open;
