//! Events of ftrace that the trace describes itself, because Perfetto has no message for them.

use rustc_hash::FxHashMap;

use super::names::{Name, Names};
use super::wire::Fields;

/// Field numbers of `FtraceEvent` from here on are described in the trace (`generic_event_descriptors`).
pub(super) const DYNAMIC: u32 = 65536;
/// Descriptions that are kept.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// True for a described event, as `group:event`, that has a type here.
pub(super) fn is_typed(name: &[u8]) -> bool {
    name.starts_with(b"irq_vectors:") || name.starts_with(b"ipi:ipi_send_cpu")
}

/// The description of a dynamic event.
#[derive(Debug, Default)]
pub(super) struct Descriptor {
    pub(super) name: Name,
    /// The number of its field `cpu`.
    pub(super) cpu: Option<u32>,
}

/// `GenericEventDescriptor`: 1 field id, 2 a `DescriptorProto`, 3 the name of the group.
pub(super) fn describe(descriptor: &[u8], known: &mut FxHashMap<u32, Descriptor>, names: &mut Names) {
    let (mut id, mut name, mut group, mut cpu) = (0, &[][..], &[][..], None);
    for (number, value) in Fields::new(descriptor) {
        match number {
            1 => id = u32::try_from(value.uint()).unwrap_or(0),
            3 => group = value.bytes(),
            2 => {
                for (number, value) in Fields::new(value.bytes()) {
                    match number {
                        1 => name = value.bytes(),
                        2 => {
                            let (mut its, mut number) = (&[][..], 0);
                            for (field, value) in Fields::new(value.bytes()) {
                                match field {
                                    1 => its = value.bytes(),
                                    3 => number = u32::try_from(value.uint()).unwrap_or(0),
                                    _ => {}
                                }
                            }
                            if its == b"cpu" {
                                cpu = Some(number);
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if id < DYNAMIC || known.len() >= MAX_DESCRIPTORS {
        return;
    }
    let name = if group.is_empty() { names.add(name) } else { names.add(&[group, b":", name].concat()) };
    known.insert(id, Descriptor { name, cpu });
}
