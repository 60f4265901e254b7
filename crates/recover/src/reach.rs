//! How far to run the code after ip. At most places, runs find new accesses within few instructions, or none at all.

/// The most instructions that are run after ip, on all paths together, while there is room for candidates.
pub(super) const FULL: usize = 256;
/// The number at places where runs have found nothing so far.
const LEAST: usize = 32;
/// After this many shorter runs of a place, one full run follows, because registers and memory may have changed.
const AGAIN: u8 = 8;
/// The number of places that are remembered, of 16 bytes each; a new place replaces another one.
const PLACES: usize = 1 << 12;
/// Code is divided into places of this many bytes.
const BYTES: u64 = 16;

/// A place in the code.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The address divided by [`BYTES`].
    number: u64,
    /// The number of instructions of the next run.
    steps: u16,
    /// Runs since the last full one.
    runs: u8,
}

/// How far runs found accesses, by code address. Processes with code at the same address share a place: if their code
/// differs, only accesses far from ip are missed.
#[derive(Debug)]
pub(super) struct Reach {
    places: Box<[Place]>,
}

impl Place {
    fn new(number: u64) -> Self {
        Self { number, steps: FULL as u16, runs: AGAIN }
    }
}

impl Default for Reach {
    fn default() -> Self {
        Self { places: vec![Place::new(0); PLACES].into() }
    }
}

impl Reach {
    fn at(&mut self, ip: u64) -> Option<&mut Place> {
        let number = ip / BYTES;
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        let place = self.places.get_mut(hash as usize)?;
        if place.number != number {
            *place = Place::new(number);
        }
        Some(place)
    }

    /// The number of instructions to run from `ip` on.
    pub(super) fn steps(&mut self, ip: u64) -> usize {
        let Some(place) = self.at(ip) else { return FULL };
        if place.runs >= AGAIN {
            place.runs = 0;
            return FULL;
        }
        place.runs += 1;
        place.steps.into()
    }

    /// Reports that the run of `steps` instructions from `ip` on found its last access after `last` instructions.
    pub(super) fn found(&mut self, ip: u64, steps: usize, last: usize) {
        let Some(place) = self.at(ip) else { return };
        // Allow twice the distance, because other samples of the place find more.
        let enough = (last * 2).clamp(LEAST, FULL) as u16;
        // Reduce gradually: another sample may find what this one did not.
        let less = if steps >= FULL { place.steps / 2 } else { place.steps };
        place.steps = enough.max(less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_run_as_far_as_it_found_anything() {
        let mut reach = Reach::default();
        // A run that finds an access after 30 instructions, or none.
        for (ip, last, then) in
            [(0x1000, 30, [128, 64, 60, 60]), (0x2000, 0, [128, 64, LEAST, LEAST]), (0x3000, 200, [FULL; 4])]
        {
            for steps in then {
                assert_eq!(reach.steps(ip), FULL);
                reach.found(ip, FULL, last);
                for _ in 0..AGAIN {
                    assert_eq!(reach.steps(ip + 3), steps);
                    reach.found(ip + 3, steps, last);
                }
            }
        }
        // An access that is found later extends the next run at once.
        reach.found(0x2000, LEAST, 31);
        assert_eq!(reach.steps(0x2000), FULL);
        assert_eq!(reach.steps(0x2000), 62);
    }

    #[test]
    fn any_address_is_a_place() {
        let mut reach = Reach::default();
        for ip in (4..64).map(|bit| 1u64 << bit).chain([0, u64::MAX]) {
            assert_eq!(reach.steps(ip), FULL, "{ip:#x}");
        }
    }
}
