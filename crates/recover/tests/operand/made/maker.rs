//! Generates programs of A64 from a seed, as words.
//!
//! The assumptions of the recovery (`crates/recover/src/lib.rs`) hold for them: without the ranges of functions, no branch is further than
//! `LEADER_SPAN`; and no indirect jump leads to an instruction that reads the flags.

use std::ops::Range;

use super::super::random::{Kind, Random};

/// Bytes on either side of the buffer's middle.
const HALF: i64 = 64 << 10;
/// Pointers into the buffer, which nothing writes; the buffer follows.
const TABLE: usize = 16;
/// Bytes of both.
pub const DATA: usize = 4096 + 2 * HALF as usize;
const SLOTS: usize = 6;
/// Registers that the statements use; x16 and x17 are for jumps.
const GENERAL: usize = 16;
/// Words of a function after which no new blocks are started.
const LONG: usize = 220;

#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    regs: [Kind; GENERAL],
    slots: [Kind; SLOTS],
}

impl State {
    fn unknown() -> Self {
        Self { regs: [Kind::Any; GENERAL], slots: [Kind::Any; SLOTS] }
    }

    fn join(&mut self, other: &Self) {
        for (own, other) in self.regs.iter_mut().zip(other.regs).chain(self.slots.iter_mut().zip(other.slots)) {
            *own = own.or(other);
        }
    }
}

/// One program.
pub struct Program {
    pub words: Vec<u32>,
    /// The pointers and the buffer.
    pub data: Vec<u64>,
    /// In bytes from the first word.
    pub functions: Vec<Range<u64>>,
    /// Every branch is nearer than `LEADER_SPAN`: it may be tested without the ranges of its functions.
    pub near: bool,
}

/// Where a branch has its distance.
#[derive(Debug, Clone, Copy)]
enum Field {
    /// 26 bits.
    Jump,
    /// 19 bits from bit 5.
    Condition,
    /// 14 bits from bit 5.
    Test,
    /// adr.
    Address,
    /// ldr of a literal.
    Literal,
}

/// A part of a function that is placed elsewhere: from this label, and back to that one.
struct Cold {
    from: usize,
    back: usize,
    state: State,
}

/// Adds a word; it may itself take numbers from the generator.
macro_rules! put {
    ($maker:expr, $word:expr) => {{
        let word = $word;
        $maker.words.push(word);
    }};
}

struct Maker {
    random: Random,
    words: Vec<u32>,
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, usize, Field)>,
    functions: Vec<usize>,
    state: State,
    /// Registers that may not be written, one bit each.
    locked: u32,
    /// Bytes pushed.
    pushed: u32,
    /// It may call.
    calls: bool,
    jumps: bool,
    function: usize,
    begin: usize,
    cold: Vec<Cold>,
    literals: Vec<(usize, u64)>,
    in_cold: bool,
    /// The address of the pointers.
    table: u64,
    middle: u64,
}

/// The program of `seed`, whose data are at `data`.
pub fn program(seed: u64, data: u64) -> Program {
    let mut random = Random(seed);
    let near = random.once_in(3);
    let count = if near { 3 } else { 6 + random.below(6) };
    let values = (0..DATA / 8)
        .map(|index| {
            let pointer = (data + 4096 + HALF as u64).wrapping_add(random.below(4000) as u64).wrapping_sub(2000) & !7;
            if index < TABLE {
                pointer
            } else {
                random.next()
            }
        })
        .collect();
    let mut maker = Maker {
        random,
        words: Vec::new(),
        labels: Vec::new(),
        fixups: Vec::new(),
        functions: Vec::new(),
        state: State::unknown(),
        locked: 0,
        pushed: 0,
        calls: true,
        jumps: false,
        function: 0,
        begin: 0,
        cold: Vec::new(),
        literals: Vec::new(),
        in_cold: false,
        table: data,
        middle: data + 4096 + HALF as u64,
    };
    maker.functions = (0..count).map(|_| maker.label()).collect();
    let mut functions = vec![maker.main()];
    let jumps = maker.random.once_in(2);
    for function in 0..count {
        maker.jumps = jumps && maker.random.once_in(3);
        functions.push(maker.function(function));
        if near {
            maker.cold_parts();
        }
    }
    if !near {
        let far = maker.random.pick(&[0usize, 300, 2300]);
        maker.words.extend(vec![0xd503_201f; far]);
        let own = maker.random.once_in(2);
        let start = maker.words.len();
        maker.cold_parts();
        if own && maker.words.len() > start {
            functions.push(start..maker.words.len());
        }
    }
    let near = near && maker.words.len() < 1000;
    maker.resolve();
    let functions = functions.iter().map(|range| range.start as u64 * 4..range.end as u64 * 4).collect();
    Program { words: maker.words, data: values, functions, near }
}

impl Maker {
    fn label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn place(&mut self, label: usize) {
        self.labels[label] = Some(self.words.len());
    }

    fn branch(&mut self, word: u32, label: usize, field: Field) {
        self.fixups.push((self.words.len(), label, field));
        put!(self, word);
    }

    /// Fills in the distances.
    fn resolve(&mut self) {
        for &(at, label, field) in &self.fixups {
            let distance = (self.labels[label].expect("a placed label") as i64 - at as i64) as u32;
            self.words[at] |= match field {
                Field::Jump => distance & 0x3ff_ffff,
                Field::Condition | Field::Literal => (distance & 0x7_ffff) << 5,
                Field::Test => (distance & 0x3fff) << 5,
                Field::Address => (distance & 0x7_ffff) << 5,
            };
        }
    }

    /// The loop over the functions.
    fn main(&mut self) -> Range<usize> {
        let begin = self.words.len();
        let again = self.label();
        self.place(again);
        for function in 0..self.functions.len() {
            for register in 0..10 {
                // mul xR, xR, x19; add xR, xR, #1; eor xR, xR, xR, ror #13
                if self.random.once_in(3) {
                    let r = register;
                    put!(self, 0x9b13_7c00 | r << 5 | r);
                    put!(self, 0x9100_0400 | r << 5 | r);
                    put!(self, 0xcac0_3400 | r << 16 | r << 5 | r);
                }
            }
            // movz, movk x19
            let (low, high) = (self.random.bits(16) | 1, self.random.bits(16));
            put!(self, 0xd280_0013 | low << 5);
            put!(self, 0xf2a0_0013 | high << 5);
            self.branch(0x9400_0000, self.functions[function], Field::Jump);
        }
        self.branch(0x1400_0000, again, Field::Jump);
        begin..self.words.len()
    }

    fn function(&mut self, number: usize) -> Range<usize> {
        for _ in 0..self.random.below(4) {
            // Padding and data between functions.
            let word = self.random.next() as u32;
            let word = self.random.pick(&[0, 0xd503_201f, word]);
            put!(self, word);
        }
        let begin = self.words.len();
        self.begin = begin;
        self.function = number;
        self.state = State::unknown();
        self.calls = !self.random.once_in(3);
        self.place(self.functions[number]);
        let signs = self.calls && self.random.once_in(2);
        if self.random.once_in(4) {
            put!(self, 0xd503_245f); // bti c
        }
        if signs {
            put!(self, 0xd503_233f); // paciasp
        }
        if self.calls {
            put!(self, 0xa9bf_7bfd); // stp x29, x30, [sp, #-16]!
        }
        put!(self, 0xd100_03ff | (SLOTS as u32 * 8) << 10); // sub sp, sp, #48
        for _ in 0..7 + self.random.below(6) {
            self.statement(2);
        }
        put!(self, 0x9100_03ff | (SLOTS as u32 * 8) << 10);
        if self.calls {
            put!(self, 0xa8c1_7bfd); // ldp x29, x30, [sp], #16
        }
        if signs {
            put!(self, 0xd503_23bf); // autiasp
        }
        let later = self.functions.len() - number - 1;
        if later > 0 && self.random.once_in(3) {
            let to = self.functions[number + 1 + self.random.below(later)];
            if self.random.once_in(2) {
                let (bit, register) = (self.random.bits(5), self.any());
                self.branch(0x3600_0000 | bit << 19 | register, to, Field::Test);
                put!(self, 0xd65f_03c0);
            } else {
                self.branch(0x1400_0000, to, Field::Jump);
            }
        } else {
            put!(self, 0xd65f_03c0); // ret
        }
        for (label, value) in std::mem::take(&mut self.literals) {
            if self.words.len() % 2 == 1 {
                put!(self, 0);
            }
            self.place(label);
            put!(self, value as u32);
            put!(self, (value >> 32) as u32);
        }
        begin..self.words.len()
    }

    /// The detached parts of functions.
    fn cold_parts(&mut self) {
        for Cold { from, back, state } in std::mem::take(&mut self.cold) {
            self.place(from);
            self.state = state;
            (self.in_cold, self.begin) = (true, self.words.len());
            for _ in 0..=self.random.below(3) {
                self.straight();
            }
            self.in_cold = false;
            self.branch(0x1400_0000, back, Field::Jump);
        }
    }

    fn statement(&mut self, depth: usize) {
        let blocks = depth > 0 && self.words.len() - self.begin < LONG;
        match self.random.below(if blocks { 15 } else { 7 }) {
            7..=9 => self.choice(depth - 1),
            10 | 11 => self.counted(depth - 1),
            12 => self.detour(),
            // A locked register would have to outlive the call.
            13 if self.calls && self.locked == 0 => self.call(),
            13 | 14 if self.jumps => self.switch(depth - 1),
            14 => self.push(depth - 1),
            _ => {
                for _ in 0..=self.random.below(6) {
                    self.straight();
                }
            }
        }
    }

    fn block(&mut self, depth: usize) {
        for _ in 0..=self.random.below(3) {
            self.statement(depth);
        }
    }

    /// A register that may be written.
    fn free(&mut self) -> u32 {
        loop {
            let register = self.random.bits(4);
            if self.locked >> register & 1 == 0 {
                return register;
            }
        }
    }

    fn any(&mut self) -> u32 {
        self.random.bits(4)
    }

    fn set(&mut self, register: u32, kind: Kind) {
        self.state.regs[register as usize] = kind;
    }

    fn kind(&self, register: u32) -> Kind {
        self.state.regs[register as usize]
    }

    /// A register that points into the buffer; makes one where there is none.
    fn pointer(&mut self) -> (u32, i64, i64) {
        let from = self.any();
        for offset in 0..GENERAL as u32 {
            let register = (from + offset) % GENERAL as u32;
            if let Kind::Pointer(low, high) = self.kind(register) {
                return (register, low, high);
            }
        }
        let register = self.free();
        self.make_pointer(register);
        match self.kind(register) {
            Kind::Pointer(low, high) => (register, low, high),
            _ => unreachable!("it was made one"),
        }
    }

    /// Loads a 64-bit value.
    fn value(&mut self, register: u32, value: u64) {
        if !self.in_cold && self.random.once_in(3) {
            let label = self.label();
            self.literals.push((label, value));
            self.branch(0x5800_0000 | register, label, Field::Literal);
            return;
        }
        for part in 0..4 {
            let half = (value >> (16 * part)) as u32 & 0xffff;
            if part == 0 || half != 0 {
                put!(self, if part == 0 { 0xd280_0000 } else { 0xf280_0000 } | part << 21 | half << 5 | register);
            }
        }
    }

    fn make_pointer(&mut self, register: u32) {
        if self.random.once_in(2) {
            let offset = self.random.below(8000) as i64 - 4000;
            self.value(register, self.middle.wrapping_add_signed(offset));
            self.set(register, Kind::Pointer(offset, offset));
        } else {
            let entry = self.random.below(TABLE) as u32;
            self.value(register, self.table);
            put!(self, 0xf940_0000 | entry << 10 | register << 5 | register); // ldr xR, [xR, #8 * entry]
            self.set(register, Kind::Pointer(-2008, 2000));
        }
    }

    /// One instruction, or a few that belong together.
    fn straight(&mut self) {
        match self.random.below(20) {
            0 => {
                let (to, value) = (self.free(), self.random.bits(6));
                put!(self, 0xd280_0000 | value << 5 | to);
                self.set(to, Kind::Number(value.into()));
            }
            1 => {
                let to = self.free();
                self.make_pointer(to);
            }
            2 => {
                // ubfx of any: a number that serves as an index
                let (to, from, bits) = (self.free(), self.any(), 1 + self.random.bits(3));
                let low = self.random.bits(4);
                put!(self, 0xd340_0000 | low << 16 | (low + bits - 1) << 10 | from << 5 | to);
                self.set(to, Kind::Number((1 << bits) - 1));
            }
            3 | 4 => self.sum(),
            5 => self.compute(),
            6 => self.choose(),
            7 | 8 => self.slot(),
            9 => self.atomic(),
            10 => self.vector(),
            11 | 12 => self.indexed(),
            13 => {
                // mov xD, xN
                let (to, from) = (self.free(), self.any());
                put!(self, 0xaa00_03e0 | from << 16 | to);
                self.set(to, self.kind(from));
            }
            14 | 15 => self.pair(),
            _ => self.access(),
        }
    }

    /// add and sub of a constant, and of a register that is shifted.
    fn sum(&mut self) {
        let (pointer, low, high) = self.pointer();
        let to = self.free();
        let number = (0..GENERAL as u32).find(|&register| matches!(self.kind(register), Kind::Number(_)));
        match (number, self.random.below(3)) {
            (Some(number), 0) => {
                let Kind::Number(max) = self.kind(number) else { return };
                let shift = self.random.bits(2);
                let kind = Kind::Pointer(low, high).plus(0, max << shift);
                // add xD, xP, xN, lsl #shift, or with uxtw
                let word = if self.random.once_in(2) { 0x8b00_0000 | shift << 10 } else { 0x8b20_4000 | shift << 10 };
                put!(self, word | number << 16 | pointer << 5 | to);
                self.set(to, kind);
            }
            (_, 1) => {
                let by = self.random.bits(7);
                put!(self, 0xd100_0000 | by << 10 | pointer << 5 | to);
                self.set(to, Kind::Pointer(low, high).plus(-i64::from(by), -i64::from(by)));
            }
            _ => {
                let by = self.random.bits(7);
                put!(self, 0x9100_0000 | by << 10 | pointer << 5 | to);
                self.set(to, Kind::Pointer(low, high).plus(by.into(), by.into()));
            }
        }
    }

    /// Anything about data.
    fn compute(&mut self) {
        let (to, n, m, a) = (self.free(), self.any(), self.any(), self.any());
        let wide = self.random.bits(1) << 31;
        let amount = self.random.bits(5);
        let word = match self.random.below(12) {
            0 => 0x0b00_0000 | self.random.bits(1) << 30 | self.random.bits(1) << 29 | amount << 10,
            1 => 0x0a00_0000 | self.random.bits(2) << 29 | self.random.bits(1) << 21 | amount << 10,
            2 => 0x1b00_0000 | a << 10 | self.random.bits(1) << 15,
            3 => 0x1ac0_2000 | self.random.bits(2) << 10,
            4 => 0x1ac0_0800 | self.random.bits(1) << 10,
            5 => 0x1380_0000 | amount << 10 | (wide >> 31) << 22,
            6 => {
                // movk
                put!(self, 0xf280_0000 | self.random.bits(2) << 21 | self.random.bits(16) << 5 | to);
                return self.set(to, Kind::Any);
            }
            7 => {
                // rev, rbit, clz
                put!(self, self.random.pick(&[0xdac0_0c00, 0xdac0_0000, 0x5ac0_1000, 0x5ac0_0800]) | n << 5 | to);
                return self.set(to, Kind::Any);
            }
            8 => {
                // sbfm, bfm, ubfm of words
                let kind = self.random.below(3) as u32;
                put!(self, 0x1300_0000 | kind << 29 | self.random.bits(5) << 16 | amount << 10 | n << 5 | to);
                return self.set(to, Kind::Any);
            }
            9 => {
                // cmp with a constant, ccmp
                put!(self, 0xf100_001f | self.random.bits(6) << 10 | n << 5);
                if self.random.once_in(2) {
                    put!(self, 0xfa40_0800 | self.random.bits(4) << 12 | self.random.bits(5) << 16 | n << 5);
                }
                return;
            }
            10 => 0x1a00_0000 | self.random.bits(1) << 30 | self.random.bits(1) << 29,
            _ => 0x1b00_0000 | a << 10,
        };
        put!(self, word | wide | m << 16 | n << 5 | to);
        self.set(to, Kind::Any);
    }

    /// csel and its relatives, after a comparison or not.
    fn choose(&mut self) {
        let (to, n, m) = (self.free(), self.any(), self.any());
        if self.random.once_in(2) {
            put!(self, 0xeb00_001f | self.any() << 16 | self.any() << 5);
        }
        let condition = self.random.bits(4) << 12;
        if self.random.once_in(2) {
            put!(self, 0x9a80_0000 | condition | m << 16 | n << 5 | to);
            self.set(to, self.kind(n).or(self.kind(m)));
        } else {
            put!(self, 0x1a80_0400 | self.random.bits(1) << 31 | condition | m << 16 | n << 5 | to);
            self.set(to, Kind::Any);
        }
    }

    /// A slot of the stack is stored or loaded.
    fn slot(&mut self) {
        let slot = self.random.below(SLOTS);
        let offset = (self.pushed / 8 + slot as u32) << 10;
        if self.random.once_in(2) {
            let from = self.any();
            put!(self, 0xf900_03e0 | offset | from);
            self.state.slots[slot] = self.kind(from);
        } else {
            let to = self.free();
            put!(self, 0xf940_03e0 | offset | to);
            self.set(to, self.state.slots[slot]);
        }
    }

    /// A load or store through a pointer, at a constant distance.
    fn access(&mut self) {
        let (pointer, ..) = self.pointer();
        let data = self.free();
        // Unsigned, scaled: b, h, w, x; loads, stores, and loads that extend the sign.
        let size = self.random.bits(2);
        let kind = match (size, self.random.below(4)) {
            (_, 0) => 0,
            (0 | 1, 1) => 2 + self.random.bits(1),
            (2, 1) => 2,
            _ => 1,
        };
        if self.random.once_in(2) {
            put!(self, 0x3900_0000 | size << 30 | kind << 22 | self.random.bits(5) << 10 | pointer << 5 | data);
        } else {
            put!(self, 0x3800_0000 | size << 30 | kind << 22 | self.random.bits(9) << 12 | pointer << 5 | data);
        }
        if kind != 0 {
            self.set(data, Kind::Any);
        }
    }

    /// With a register as index, or with the base written back.
    fn indexed(&mut self) {
        let (pointer, low, high) = self.pointer();
        let data = self.free();
        let size = self.random.bits(2);
        let load = self.random.bits(1);
        let number = (0..GENERAL as u32).find(|&register| matches!(self.kind(register), Kind::Number(_)));
        if let (Some(number), true) = (number, self.random.once_in(2)) {
            let option = self.random.pick(&[0b010, 0b011, 0b110, 0b111]);
            let word = 0x3820_0800 | option << 13 | self.random.bits(1) << 12;
            put!(self, word | size << 30 | load << 22 | number << 16 | pointer << 5 | data);
        } else {
            if data == pointer || self.locked >> pointer & 1 == 1 {
                return;
            }
            let by = self.random.below(120) as i64 - 60;
            let mode = if self.random.once_in(2) { 0b01 } else { 0b11 };
            let word = 0x3800_0000 | size << 30 | load << 22 | (by as u32 & 0x1ff) << 12 | mode << 10;
            put!(self, word | pointer << 5 | data);
            self.set(pointer, Kind::Pointer(low, high).plus(by, by));
        }
        if load != 0 {
            self.set(data, Kind::Any);
        }
    }

    /// ldp and stp, through a pointer or in the slots.
    fn pair(&mut self) {
        let (one, two) = (self.free(), self.free());
        if one == two {
            return;
        }
        let load = self.random.bits(1);
        if self.random.once_in(2) {
            let slot = self.random.below(SLOTS - 1);
            let offset = (self.pushed / 8 + slot as u32) << 15;
            put!(self, 0xa900_03e0 | load << 22 | offset | two << 10 | one);
            if load == 0 {
                (self.state.slots[slot], self.state.slots[slot + 1]) = (self.kind(one), self.kind(two));
            } else {
                self.set(one, self.state.slots[slot]);
                self.set(two, self.state.slots[slot + 1]);
            }
            return;
        }
        let (pointer, low, high) = self.pointer();
        let by = self.random.below(16) as i64 - 8;
        let mode = self.random.pick(&[0b01, 0b10, 0b11]);
        let writes = mode != 0b10;
        if writes && (one == pointer || two == pointer || self.locked >> pointer & 1 == 1) {
            return;
        }
        let word = 0xa800_0000 | mode << 23 | load << 22 | (by as u32 & 0x7f) << 15;
        put!(self, word | two << 10 | pointer << 5 | one);
        if writes {
            self.set(pointer, Kind::Pointer(low, high).plus(by * 8, by * 8));
        }
        if load != 0 {
            self.set(one, Kind::Any);
            self.set(two, Kind::Any);
        }
    }

    /// Atomics and exclusives, whose addresses are aligned.
    fn atomic(&mut self) {
        let (pointer, low, high) = self.pointer();
        let (base, value, old) = (self.free(), self.any(), self.free());
        if base == old || base == value {
            return;
        }
        put!(self, 0x927d_f000 | pointer << 5 | base); // and xB, xP, #~7
        self.set(base, Kind::Pointer(low - 7, high));
        let status = self.free();
        match self.random.below(6) {
            0 => put!(self, 0xf820_0000 | self.random.bits(3) << 12 | value << 16 | base << 5 | old),
            1 => put!(self, 0xf820_8000 | value << 16 | base << 5 | old),
            2 => put!(self, 0xc8a0_7c00 | old << 16 | base << 5 | value),
            3 => put!(self, 0xc8df_fc00 | base << 5 | old),
            4 => {
                put!(self, 0xc89f_fc00 | base << 5 | value);
                return;
            }
            _ if status != base && status != old && status != value => {
                // A stop ends the exclusive access: there is no loop around it.
                put!(self, 0xc85f_7c00 | base << 5 | old);
                put!(self, 0xc800_7c00 | status << 16 | base << 5 | value);
                self.set(status, Kind::Any);
            }
            _ => put!(self, 0xc85f_7c00 | base << 5 | old),
        }
        self.set(old, Kind::Any);
    }

    /// Loads and stores of vector registers.
    fn vector(&mut self) {
        let (pointer, low, high) = self.pointer();
        let word = match self.random.below(4) {
            0 => 0x3dc0_0000, // ldr q0, [x]
            1 => 0x3d80_0000, // str q0, [x]
            2 if self.locked >> pointer & 1 == 0 => {
                self.set(pointer, Kind::Pointer(low, high).plus(32, 32));
                0x4cdf_a000 // ld1 {v0.16b, v1.16b}, [x], #32
            }
            _ => 0x6d00_0400, // stp d0, d1, [x]
        };
        put!(self, word | pointer << 5);
    }

    /// A branch that data decide, with one way or two.
    fn choice(&mut self, depth: usize) {
        let (other, end) = (self.label(), self.label());
        match self.random.below(4) {
            0 => {
                let word = 0x3400_0000 | self.random.bits(1) << 31 | self.random.bits(1) << 24;
                let register = self.any();
                self.branch(word | register, other, Field::Condition);
            }
            1 => {
                let word = 0x3600_0000 | self.random.bits(1) << 24 | self.random.bits(5) << 19;
                let register = self.any();
                self.branch(word | register, other, Field::Test);
            }
            which => {
                if which == 2 {
                    let (n, m) = (self.any(), self.any());
                    put!(self, 0xeb00_001f | m << 16 | n << 5);
                }
                let condition = self.random.bits(4) % 14;
                self.branch(0x5400_0000 | condition, other, Field::Condition);
            }
        }
        let before = self.state.clone();
        self.block(depth);
        if self.random.once_in(2) {
            self.branch(0x1400_0000, end, Field::Jump);
            self.place(other);
            let first = std::mem::replace(&mut self.state, before);
            self.block(depth);
            self.state.join(&first);
        } else {
            self.place(other);
            self.state.join(&before);
        }
        self.place(end);
    }

    /// A loop with a counter.
    fn counted(&mut self, depth: usize) {
        let counter = self.free();
        if self.locked.count_ones() > 3 {
            return;
        }
        put!(self, 0xd280_0000 | (2 + self.random.bits(2)) << 5 | counter);
        // What the body changes is unknown when it begins again.
        self.state = State::unknown();
        self.locked |= 1 << counter;
        let head = self.label();
        self.place(head);
        let calls = std::mem::replace(&mut self.calls, false);
        self.block(depth);
        self.calls = calls;
        self.locked &= !(1 << counter);
        if self.random.once_in(2) {
            put!(self, 0xf100_0400 | counter << 5 | counter); // subs xC, xC, #1
            self.branch(0x5400_0001, head, Field::Condition); // b.ne
        } else {
            put!(self, 0xd100_0400 | counter << 5 | counter);
            self.branch(0xb500_0000 | counter, head, Field::Condition); // cbnz
        }
        self.set(counter, Kind::Number(0));
    }

    /// A part that is placed elsewhere.
    fn detour(&mut self) {
        if self.in_cold || self.pushed != 0 || self.locked != 0 {
            return;
        }
        let (from, back) = (self.label(), self.label());
        let register = self.any();
        self.branch(0xb500_0000 | register, from, Field::Condition);
        self.cold.push(Cold { from, back, state: self.state.clone() });
        if self.random.once_in(2) {
            self.straight();
        }
        self.place(back);
        self.state = State::unknown();
    }

    fn call(&mut self) {
        let later = self.functions.len() - self.function - 1;
        if later == 0 {
            return;
        }
        let to = self.functions[self.function + 1 + self.random.below(later)];
        if self.random.once_in(3) {
            self.branch(0x1000_0010, to, Field::Address); // adr x16
            put!(self, 0xd63f_0200); // blr x16
        } else {
            self.branch(0x9400_0000, to, Field::Jump);
        }
        let slots = self.state.slots;
        self.state = State { slots, ..State::unknown() };
    }

    /// A jump into a list of branches.
    fn switch(&mut self, depth: usize) {
        let (list, end) = (self.label(), self.label());
        let from = self.any();
        put!(self, 0x9240_0411 | from << 5); // and x17, xN, #3
        self.branch(0x1000_0010, list, Field::Address); // adr x16
        put!(self, 0x8b11_0a10); // add x16, x16, x17, lsl #2
        put!(self, 0xd61f_0200); // br x16
        self.place(list);
        let arms: Vec<usize> = (0..4).map(|_| self.label()).collect();
        for &arm in &arms {
            self.branch(0x1400_0000, arm, Field::Jump);
        }
        let before = self.state.clone();
        let mut joined: Option<State> = None;
        for arm in arms {
            self.place(arm);
            self.state = before.clone();
            self.block(depth.min(1));
            self.branch(0x1400_0000, end, Field::Jump);
            match &mut joined {
                Some(joined) => joined.join(&self.state),
                None => joined = Some(self.state.clone()),
            }
        }
        self.place(end);
        self.state = joined.unwrap_or(before);
    }

    /// Two registers on the stack around a block.
    fn push(&mut self, depth: usize) {
        let (one, two) = (self.any(), self.any());
        let kinds = (self.kind(one), self.kind(two));
        put!(self, 0xa9bf_03e0 | two << 10 | one);
        self.pushed += 16;
        self.block(depth);
        self.pushed -= 16;
        let (to, other) = (self.free(), self.free());
        if to == other {
            put!(self, 0x9100_43ff); // add sp, sp, #16
            return;
        }
        put!(self, 0xa8c1_03e0 | other << 10 | to);
        self.set(to, kinds.0);
        self.set(other, kinds.1);
    }
}
