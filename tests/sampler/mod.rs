//! The sampler on the running kernel.

mod hotplug;
mod names;
mod tick;
