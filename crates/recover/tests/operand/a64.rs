//! What an instruction of A64 touches, by the bits of its encoding (Arm Architecture Reference Manual, C4.1, loads and stores): it shares
//! nothing with the decoder that is tested.

/// The tag of a pointer is no part of the address.
const UNTAGGED: u64 = (1 << 56) - 1;

/// Address and bytes of what the instruction `word` at `pc` loads or stores, with these values of x0 to x30 and sp.
pub fn accesses(word: u32, pc: u64, gpr: &[u64; 32]) -> Option<(u64, u64)> {
    let bits = |high: u32, low: u32| word >> low & ((1 << (high - low + 1)) - 1);
    let bit = |at: u32| word >> at & 1 == 1;
    let signed = |high: u32, low: u32| {
        let unused = 31 - (high - low);
        i64::from((bits(high, low) << unused) as i32 >> unused) as u64
    };
    let base = gpr[bits(9, 5) as usize];
    let (size, vector, opc) = (bits(31, 30), bit(26), bits(23, 22));
    let found = |addr: u64, bytes: u64| Some((addr & UNTAGGED, bytes));
    let exclusive = || match (bit(23), bit(21)) {
        (false, true) if bit(31) => 8 << bits(30, 30),
        // casp
        (false, true) => 8 << bits(30, 30),
        _ => 1 << size,
    };
    match (bits(29, 27), bits(25, 24), vector) {
        (0b001, 0b00, false) => found(base, exclusive()),
        (0b001, 0b00, true) => {
            let count = match bits(15, 12) {
                0b0000 | 0b0010 => 4,
                0b0100 | 0b0110 => 3,
                0b1000 | 0b1010 => 2,
                _ => 1,
            };
            found(base, count * (8 << bits(30, 30)))
        }
        (0b001, 0b01, true) => {
            let count = u64::from((bits(13, 13) << 1 | bits(21, 21)) + 1);
            let bytes = match bits(15, 14) {
                0 => 1,
                1 => 2,
                2 if bit(10) => 8,
                2 => 4,
                _ => 1 << bits(11, 10),
            };
            found(base, count * bytes)
        }
        // ldapur and stlur; with bit 21 it is about tags.
        (0b011, 0b01, false) if !bit(21) && bits(11, 10) == 0 => found(base.wrapping_add(signed(20, 12)), 1 << size),
        // Literals; 11 is a prefetch.
        (0b011, 0b00, _) if vector || size != 3 => {
            let bytes = match size {
                1 => 8,
                2 if vector => 16,
                _ => 4,
            };
            found(pc.wrapping_add(signed(23, 5).wrapping_mul(4)), bytes)
        }
        (0b101, mode @ (0b00 | 0b01), _) => {
            let bytes: u64 = match (vector, size) {
                (true, _) => 4 << size,
                (false, 2) => 8,
                (false, _) => 4,
            };
            let offset = signed(21, 15).wrapping_mul(bytes);
            let post = mode == 0 && bit(23);
            found(if post { base } else { base.wrapping_add(offset) }, 2 * bytes)
        }
        (0b111, kind @ (0b00 | 0b01), _) => {
            let bytes: u64 = if vector && opc >= 2 { 16 } else { 1 << size };
            let prefetch = !vector && size == 3 && opc == 2;
            match (kind, bit(21), bits(11, 10)) {
                (1, ..) if !prefetch => found(base.wrapping_add(u64::from(bits(21, 10)) * bytes), bytes),
                (0, false, 0b00) if !prefetch => found(base.wrapping_add(signed(20, 12)), bytes),
                (0, false, 0b10 | 0b11) => found(base.wrapping_add(signed(20, 12)), bytes),
                (0, false, 0b01) | (0, true, 0b00) => found(base, bytes),
                (0, true, 0b10) if !prefetch && bit(14) => {
                    let index = bits(20, 16) as usize;
                    let index = if index == 31 { 0 } else { gpr[index] };
                    let index = match bits(15, 13) {
                        0b010 => index & 0xffff_ffff,
                        0b110 => i64::from(index as i32) as u64,
                        _ => index,
                    };
                    let shift = if bit(12) { bytes.trailing_zeros() } else { 0 };
                    found(base.wrapping_add(index << shift), bytes)
                }
                _ => None,
            }
        }
        _ => None,
    }
}
