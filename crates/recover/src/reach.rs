//! How far after ip code is run: at most places, new accesses are found within few instructions, or none are found.

/// Instructions run after ip, on all ways together, while there is room for candidates.
pub(super) const FULL: usize = 256;
/// The same where nothing was found so far.
const LEAST: usize = 32;
/// After this many shorter runs of a place, one goes all the way: its registers and memory may be others by then.
const AGAIN: u8 = 8;
/// Places that are remembered, of 16 bytes each; a place that is new takes that of another one.
const PLACES: usize = 1 << 12;
/// Neighbouring instructions are one place.
const BYTES: u64 = 16;

/// A place in the code.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The address divided by [`BYTES`].
    number: u64,
    /// How far its next run goes.
    steps: u16,
    /// Runs since the last full one.
    runs: u8,
}

/// How far runs found accesses, by the address of the code. Processes with code at the same address share a place: where they
/// differ, only accesses far from ip are missed.
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

    /// How many instructions to run from `ip` on.
    pub(super) fn steps(&mut self, ip: u64) -> usize {
        let Some(place) = self.at(ip) else { return FULL };
        if place.runs >= AGAIN {
            place.runs = 0;
            return FULL;
        }
        place.runs += 1;
        place.steps.into()
    }

    /// The run of `steps` instructions from `ip` on found its last access after `last` of them.
    pub(super) fn found(&mut self, ip: u64, steps: usize, last: usize) {
        let Some(place) = self.at(ip) else { return };
        // Twice as far, for other samples of the place find more.
        let enough = (last * 2).clamp(LEAST, FULL) as u16;
        // Step by step: what one sample does not find, another one may.
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
        // It finds something after 30 instructions, or nothing.
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
        // What is found later takes it further at once.
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
