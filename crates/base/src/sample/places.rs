//! Where a CPU is in the machine: its core, last-level cache and NUMA node.

/// The place of a CPU. Each number is that of the lowest CPU which shares the core or cache; a node has its own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuPlace {
    /// CPUs of one core (SMT siblings) have the same number.
    pub core: u32,
    /// CPUs of one last-level cache have the same number.
    pub llc: u32,
    /// NUMA node.
    pub node: u32,
}

/// How far apart two CPUs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// The same core.
    Core,
    /// Different cores that share the last-level cache.
    Llc,
    /// Different last-level caches of a node.
    Node,
    /// Different nodes.
    Nodes,
}

/// The places of a host's CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuPlaces {
    places: Vec<Option<CpuPlace>>,
}

impl CpuPlaces {
    /// CPU numbers at and above this have no place.
    const MAX: u32 = 1 << 16;

    /// Sets the place of a CPU.
    pub fn set(&mut self, cpu: u32, place: CpuPlace) {
        if cpu >= Self::MAX {
            return;
        }
        let cpu = cpu as usize;
        if self.places.len() <= cpu {
            self.places.resize(cpu + 1, None);
        }
        if let Some(at) = self.places.get_mut(cpu) {
            *at = Some(place);
        }
    }

    /// The place of a CPU, if it is known.
    #[must_use]
    pub fn get(&self, cpu: u32) -> Option<CpuPlace> {
        self.places.get(cpu as usize).copied().flatten()
    }

    /// True if no place is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// The CPUs with a known place, each with it.
    pub fn iter(&self) -> impl Iterator<Item = (u32, CpuPlace)> + '_ {
        (0..).zip(&self.places).filter_map(|(cpu, place)| Some((cpu, (*place)?)))
    }

    /// How far apart two CPUs are, if both places are known.
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> Option<Distance> {
        let (from, to) = (self.get(from)?, self.get(to)?);
        Some(if from.core == to.core {
            Distance::Core
        } else if from.llc == to.llc {
            Distance::Llc
        } else if from.node == to.node {
            Distance::Node
        } else {
            Distance::Nodes
        })
    }
}
