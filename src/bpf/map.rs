//! Opens the hint map and checks it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapHandle, MapInfo, MapType};

use super::hints::{HintsError, MapRef};

/// Bytes of the hint at the beginning of a value.
pub(super) const HINT_SIZE: u32 = 8;

/// A hint map.
#[derive(Debug)]
pub(super) struct HintMap {
    pub handle: MapHandle,
    pub id: u32,
    pub value_size: u32,
}

impl HintMap {
    /// Opens and checks the map.
    pub(super) fn open(map: &MapRef) -> Result<Self, HintsError> {
        let no_map = |reason: String| HintsError::NoMap { map: map.clone(), reason };
        let handle = match map {
            MapRef::Path(path) => {
                if path.as_os_str().as_bytes().contains(&0) {
                    return Err(no_map("no path has a NUL in it".to_owned()));
                }
                std::fs::metadata(path).map_err(|error| no_map(explain(&error)))?;
                pinned(path).map_err(|error| no_map(explain_pin(&error)))?
            }
            MapRef::Id(id) => by_id(*id).map_err(|error| no_map(explain(&error)))?,
            MapRef::Name(name) => match *ids_of_name(name) {
                [] => return Err(no_map(none_of_name(name))),
                [id] => by_id(id).map_err(|error| no_map(explain(&error)))?,
                ref ids => {
                    let ids: Vec<String> = ids.iter().map(|id| format!("id:{id}")).collect();
                    return Err(no_map(format!("{} maps have that name: take one of {}", ids.len(), ids.join(", "))));
                }
            },
        };
        let info = MapInfo::new(handle.as_fd()).map_err(|_| no_map(explain(&io::Error::last_os_error())))?;
        let wrong = |reason: String| HintsError::WrongMap { map: map.clone(), reason };
        if handle.map_type() != MapType::TaskStorage {
            return Err(wrong(format!(
                "it is a map of type {:?}, and hints are in one of type TaskStorage",
                handle.map_type()
            )));
        }
        let value_size = handle.value_size();
        if value_size < HINT_SIZE {
            return Err(wrong(format!("its values have {value_size} bytes, and a hint alone has {HINT_SIZE}")));
        }
        Ok(Self { id: info.info.id, value_size, handle })
    }

    /// Why the requested map is now another one; `None` if it is the same, or if that is unknown.
    pub(super) fn replaced(&self, map: &MapRef) -> Option<String> {
        let now = match map {
            MapRef::Path(path) => match pinned(path) {
                Ok(handle) => vec![id_of(&handle)],
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Vec::new(),
                Err(_) => return None,
            },
            // This process holds the map, so its id stays the same.
            MapRef::Id(_) => return None,
            MapRef::Name(name) => ids_of_name(name),
        };
        match now.as_slice() {
            ids if ids.contains(&self.id) => None,
            [] => Some(format!("the hint map {map} was removed")),
            _ => Some(format!("the hint map {map} was replaced by another")),
        }
    }
}

fn pinned(path: &std::path::Path) -> io::Result<MapHandle> {
    // The pinned object may be a program or a link, for which libbpf's queries fail.
    MapHandle::from_pinned_path(path).map_err(|_| io::Error::last_os_error())
}

fn by_id(id: u32) -> io::Result<MapHandle> {
    MapHandle::from_map_id(id).map_err(|_| io::Error::last_os_error())
}

fn id_of(handle: &MapHandle) -> u32 {
    MapInfo::new(handle.as_fd()).map_or(0, |info| info.info.id)
}

fn ids_of_name(name: &str) -> Vec<u32> {
    MapInfoIter::default().filter(|info| info.name.as_bytes() == name.as_bytes()).map(|info| info.id).collect()
}

fn none_of_name(name: &str) -> String {
    // Without the right to list maps the list is empty: the kernel then returns EPERM. At the end of the list it
    // returns ENOENT.
    let is_empty = MapInfoIter::default().next().is_none();
    if is_empty && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM) {
        return format!("no map \"{name}\" can be seen; listing maps takes root or CAP_SYS_ADMIN");
    }
    format!("no map has the name \"{name}\"")
}

fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("{error}; it takes root, or CAP_BPF and the right to open it"),
        _ => error.to_string(),
    }
}

/// `bpf(BPF_OBJ_GET)` returns EPERM for missing rights, and EACCES for a file that is not a BPF object or whose mode
/// forbids access (`bpf_inode_type`, `bpf_obj_do_get` in kernel/bpf/inode.c).
fn explain_pin(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES) => format!("{error}: the file is not a pinned map, or its mode denies access"),
        Some(libc::EINVAL) => format!("{error}: the pinned object is not a map"),
        _ => explain(error),
    }
}

/// The inode number of our pid namespace, by which the programs find it in the kernel's `struct pid`.
pub(super) fn pid_namespace(proc: &std::path::Path) -> io::Result<u32> {
    crate::host::namespace::number_of(&proc.join("self/ns/pid"))
}
