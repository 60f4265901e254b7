//! Makes x86-64 programs from a seed, as assembly text: functions that work on one buffer, with all the ways that control takes
//! through compiled and hand-written code.
//!
//! What the recovery assumes (`src/sampler/operand/mod.rs`) holds for them: functions without `.cfi_startproc` have branches only
//! to places nearer than `LEADER_SPAN`, and data before them ends in zeros; no jump through a table leads to an instruction that
//! reads the flags.

use std::fmt::Write as _;

/// Bytes on either side of the buffer's middle, the label `buf`.
const HALF: i64 = 64 << 10;
/// Pointers stay this near to the middle.
const NEAR: i64 = 60_000;
const SLOTS: usize = 6;
/// Lines of a function after which no more blocks are begun, so that it stays shorter than `LEADER_SPAN`.
const LONG: usize = 220;

const QUAD: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
const LONGS: [&str; 16] = [
    "eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "r8d", "r9d", "r10d", "r11d", "r12d", "r13d", "r14d",
    "r15d",
];
const WORDS: [&str; 16] =
    ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8w", "r9w", "r10w", "r11w", "r12w", "r13w", "r14w", "r15w"];
const BYTES: [&str; 16] =
    ["al", "cl", "dl", "bl", "spl", "bpl", "sil", "dil", "r8b", "r9b", "r10b", "r11b", "r12b", "r13b", "r14b", "r15b"];

/// Numbers that follow from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn range(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// True once in `count`.
    fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// What is known of a register or a slot of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Any,
    /// From 0 to this.
    Number(i64),
    /// Into the buffer, so far from its middle.
    Pointer(i64, i64),
}

impl Kind {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) => Self::Number(one.max(two)),
            (Self::Pointer(low, high), Self::Pointer(lower, higher)) => Self::Pointer(low.min(lower), high.max(higher)),
            _ => Self::Any,
        }
    }

    fn plus(self, low: i64, high: i64) -> Self {
        match self {
            Self::Number(max) if low >= 0 && max + high < NEAR => Self::Number(max + high),
            Self::Pointer(from, to) if from + low > -NEAR && to + high < NEAR => Self::Pointer(from + low, to + high),
            _ => Self::Any,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    regs: [Kind; 16],
    slots: [Kind; SLOTS],
}

impl State {
    fn unknown() -> Self {
        Self { regs: [Kind::Any; 16], slots: [Kind::Any; SLOTS] }
    }

    fn join(&mut self, other: &Self) {
        for (own, other) in self.regs.iter_mut().zip(&other.regs) {
            *own = own.or(*other);
        }
        for (own, other) in self.slots.iter_mut().zip(&other.slots) {
            *own = own.or(*other);
        }
    }
}

/// One program.
pub struct Program {
    pub text: String,
    /// Every branch is nearer than `LEADER_SPAN`: it may be looked at without the ranges of its functions.
    pub near: bool,
}

/// A line, whose parts may themselves take numbers from the maker.
macro_rules! put {
    ($maker:expr, $($part:tt)*) => {{
        let line = format!($($part)*);
        $maker.put(&line);
    }};
}

struct Maker {
    random: Random,
    out: String,
    lines: usize,
    labels: usize,
    state: State,
    /// Registers that may not be written, one bit each.
    locked: u16,
    /// Bytes pushed.
    pushed: i64,
    /// The slots are in the red zone: nothing may be pushed or called.
    red_zone: bool,
    /// Parts of the function that stand elsewhere.
    cold: Vec<String>,
    /// These may be far.
    far: bool,
    in_cold: bool,
    /// How the function jumps to places of its own through tables, if it does.
    jumps: Option<usize>,
    /// It may yet be made long by code that never runs.
    gap: bool,
    tables: String,
    function: usize,
    functions: usize,
}

/// The program of `seed`.
pub fn program(seed: u64) -> Program {
    let mut random = Random(seed);
    let near = random.once_in(3);
    let functions = 6 + random.below(6);
    let mut maker = Maker {
        random,
        out: String::new(),
        lines: 0,
        labels: 0,
        state: State::unknown(),
        locked: 0,
        pushed: 0,
        red_zone: false,
        cold: Vec::new(),
        far: false,
        in_cold: false,
        jumps: None,
        gap: false,
        tables: String::new(),
        function: 0,
        functions,
    };
    maker.main();
    // One such jump says something of all the functions near it whose ranges are not known.
    let jumps = maker.random.once_in(2);
    for function in 0..functions {
        maker.jumps = (jumps && maker.random.once_in(3)).then(|| maker.random.below(4));
        maker.function(function, near);
    }
    maker.data();
    Program { text: maker.out, near }
}

impl Maker {
    fn put(&mut self, line: &str) {
        self.lines += 1;
        let _ = writeln!(self.out, "\t{line}");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!(".L{}", self.labels)
    }

    fn place(&mut self, label: &str) {
        let _ = writeln!(self.out, "{label}:");
    }

    /// The loop over the functions.
    fn main(&mut self) {
        self.out.push_str("\t.text\n\t.globl _start\n_start:\n\t.cfi_startproc\n\t.cfi_undefined rip\n");
        self.place("again");
        for function in 0..self.functions {
            for register in [0, 1, 2, 3, 6, 7, 8, 9] {
                if self.random.once_in(3) {
                    self.put("imul $1103515245, seed(%rip), %rax");
                    self.put("add $12345, %rax");
                    self.put("rol $13, %rax");
                    self.put("mov %rax, seed(%rip)");
                    put!(self, "mov %rax, %{}", QUAD[register]);
                }
            }
            if function < self.functions / 2 || self.random.once_in(2) {
                put!(self, "call f{function}");
            }
        }
        self.put("jmp again");
        self.out.push_str("\t.cfi_endproc\n");
    }

    fn data(&mut self) {
        let tables = std::mem::take(&mut self.tables);
        let _ = write!(self.out, "\t.section .rodata\n\t.p2align 3\n{tables}fs:\n");
        for function in 0..self.functions {
            let _ = writeln!(self.out, "\t.quad f{function}");
        }
        let _ = write!(self.out, "\t.data\n\t.p2align 6\nseed:\t.quad {}\nptrs:\n", self.random.next() >> 1);
        for _ in 0..16 {
            let _ = writeln!(self.out, "\t.quad buf + {}", self.random.range(-2000, 2000));
        }
        let _ = write!(self.out, "\t.p2align 6\n\t.skip {}\n", HALF - 2048);
        for index in 0..512 {
            if index == 256 {
                self.place("buf");
            }
            let _ = writeln!(self.out, "\t.quad {:#x}", self.random.next());
        }
        let _ = writeln!(self.out, "\t.skip {HALF}\n\t.section .note.GNU-stack,\"\",@progbits");
    }

    fn function(&mut self, number: usize, near: bool) {
        let cfi = !near && !self.random.once_in(3);
        self.function = number;
        self.far = cfi;
        self.gap = cfi && self.random.once_in(2);
        self.lines = 0;
        self.state = State::unknown();
        self.red_zone = self.random.once_in(4);
        self.out.push_str("\t.text\n");
        self.between(cfi);
        let _ = writeln!(self.out, "f{number}:");
        if cfi {
            self.out.push_str("\t.cfi_startproc\n");
        }
        if self.random.once_in(4) {
            self.put("endbr64");
        }
        let saved: Vec<usize> = (0..self.random.below(3)).map(|_| self.random.pick(&[3, 5, 12, 13])).collect();
        if !self.red_zone {
            for &register in &saved {
                put!(self, "push %{}", QUAD[register]);
            }
            put!(self, "sub ${}, %rsp", SLOTS * 8);
        }
        let count = 4 + self.random.below(6);
        for _ in 0..count {
            self.statement(2);
        }
        if cfi && self.random.once_in(4) {
            self.many_cold();
        }
        for _ in 0..3 {
            self.statement(2);
        }
        if !self.red_zone {
            put!(self, "add ${}, %rsp", SLOTS * 8);
            for &register in saved.iter().rev() {
                put!(self, "pop %{}", QUAD[register]);
            }
        }
        self.state = State::unknown();
        self.end();
        self.cold_parts(cfi);
    }

    /// Returns, or goes on in another function.
    fn end(&mut self) {
        let first = self.functions / 2;
        let from = (self.function + 1).max(first);
        if from < self.functions && self.random.once_in(3) {
            let to = self.random.range(from as i64, self.functions as i64 - 1);
            match self.random.below(4) {
                0 => {
                    put!(self, "test ${}, %r8d", 1 << self.random.below(8));
                    put!(self, "jnz f{to}");
                    self.put("ret");
                }
                1 if self.jumps == Some(0) => {
                    put!(self, "mov $f{to}, %eax");
                    self.put("jmp *%rax");
                }
                2 => put!(self, "jmp *fs+{}(%rip)", to * 8),
                _ => put!(self, "jmp f{to}"),
            }
        } else {
            self.put("ret");
        }
    }

    /// What stands between functions. Before one whose range is not known, data ends in zeros.
    fn between(&mut self, cfi: bool) {
        match self.random.below(5) {
            0 => self.out.push_str("\t.p2align 4\n"),
            1 => self.out.push_str("\t.skip 5, 0xcc\n"),
            2 => {
                for _ in 0..=self.random.below(40) {
                    let byte = self.random.next() & 0xff;
                    let _ = writeln!(self.out, "\t.byte {byte}");
                }
                if !cfi {
                    let zeros = 16 + self.random.below(64);
                    let _ = writeln!(self.out, "\t.zero {zeros}");
                }
            }
            3 => {
                let zeros = 16 + self.random.below(200);
                let _ = writeln!(self.out, "\t.zero {zeros}");
            }
            _ => {}
        }
    }

    /// The parts of the function that are not where it is: behind it, or in another section.
    fn cold_parts(&mut self, cfi: bool) {
        let cold = std::mem::take(&mut self.cold);
        if !self.far {
            for part in &cold {
                self.out.push_str(part);
            }
            if cfi {
                self.out.push_str("\t.cfi_endproc\n");
            }
            return;
        }
        self.out.push_str("\t.cfi_endproc\n");
        if cold.is_empty() {
            return;
        }
        let section = self.random.pick(&[".text.unlikely", ".text.zfar"]);
        let own = self.random.once_in(2);
        let _ = writeln!(
            self.out,
            "\t.section {section},\"ax\",@progbits\n\t.skip {}, 0x90",
            self.random.pick(&[0, 1000, 3000, 9000])
        );
        if own {
            self.out.push_str("\t.cfi_startproc\n");
        }
        for part in &cold {
            self.out.push_str(part);
        }
        if own {
            self.out.push_str("\t.cfi_endproc\n");
        }
    }

    fn statement(&mut self, depth: usize) {
        let blocks = depth > 0 && self.lines < LONG;
        match self.random.below(if blocks { 16 } else { 7 }) {
            7 | 8 => self.branch(depth - 1),
            9 | 10 => self.counted(depth - 1),
            11 | 12 if self.jumps.is_some() => self.switch(depth - 1),
            11 => self.branch(depth - 1),
            13 if !self.in_cold && self.gap && self.random.once_in(2) => self.gap(),
            13 if !self.in_cold => self.cold(),
            // What is locked would have to outlive the call.
            14 if !self.red_zone && self.locked == 0 => self.call(),
            15 if !self.red_zone => self.push(depth - 1),
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

    /// A comparison; the condition of a branch that depends on it.
    fn compare(&mut self) -> &'static str {
        let (one, two) = (self.any(), self.any());
        match self.random.below(5) {
            0 => {
                put!(self, "cmp %{}, %{}", QUAD[one], QUAD[two]);
                self.random.pick(&["b", "ae", "l", "ge", "s", "e"])
            }
            1 => {
                put!(self, "bt ${}, %{}", self.random.below(32), LONGS[one]);
                self.random.pick(&["c", "nc"])
            }
            2 => {
                let memory = self.memory();
                put!(self, "cmp{} ${}, {memory}", self.random.pick(&["b", "w", "l", "q"]), self.random.below(100));
                self.random.pick(&["b", "a", "l", "g"])
            }
            3 => {
                put!(self, "test %{0}, %{0}", LONGS[one]);
                self.random.pick(&["z", "s", "ns"])
            }
            _ => {
                put!(self, "test ${}, %{}", 1 << self.random.below(16), LONGS[one]);
                self.random.pick(&["z", "nz"])
            }
        }
    }

    fn branch(&mut self, depth: usize) {
        let (other, end) = (self.label(), self.label());
        let condition = self.compare();
        put!(self, "j{condition} {other}");
        let before = self.state.clone();
        self.block(depth);
        if self.random.once_in(2) {
            put!(self, "jmp {end}");
            let first = std::mem::replace(&mut self.state, before);
            self.place(&other);
            self.block(depth);
            self.place(&end);
            self.state.join(&first);
        } else {
            self.place(&other);
            self.state.join(&before);
        }
    }

    fn counted(&mut self, depth: usize) {
        let Some(counter) = self.free() else { return };
        let count = 2 + self.random.below(4);
        put!(self, "mov ${count}, %{}", LONGS[counter]);
        let locked = self.locked;
        self.locked |= 1 << counter;
        for register in 0..16 {
            if self.locked >> register & 1 == 0 {
                let keep = self.state.regs[register] != Kind::Any && self.locked.count_ones() < 7;
                if keep && self.random.once_in(2) {
                    self.locked |= 1 << register;
                } else {
                    self.state.regs[register] = Kind::Any;
                }
            }
        }
        self.state.slots = [Kind::Any; SLOTS];
        self.state.regs[counter] = Kind::Number(count as i64);
        let head = self.label();
        self.place(&head);
        self.block(depth);
        put!(self, "dec %{}", LONGS[counter]);
        put!(self, "jnz {head}");
        self.state.regs[counter] = Kind::Number(0);
        self.locked = locked;
    }

    fn switch(&mut self, depth: usize) {
        let (Some(index), from) = (self.free(), self.any()) else { return };
        put!(self, "mov %{}, %{}", LONGS[from], LONGS[index]);
        if self.random.once_in(2) {
            put!(self, "shr ${}, %{}", self.random.below(8), LONGS[index]);
        }
        put!(self, "and $3, %{}", LONGS[index]);
        self.state.regs[index] = Kind::Number(3);
        self.labels += 1;
        let table = format!(".T{}", self.labels);
        let end = self.label();
        let name = QUAD[index];
        let prefix = if self.random.once_in(3) { "notrack " } else { "" };
        match self.jumps.unwrap_or_default() {
            0 => {
                put!(self, "mov {table}(,%{name},8), %{name}");
                put!(self, "{prefix}jmp *%{name}");
                self.state.regs[index] = Kind::Any;
            }
            1 => {
                put!(self, "lea {table}(,%{name},8), %{name}");
                put!(self, "{prefix}jmp *(%{name})");
                self.state.regs[index] = Kind::Any;
            }
            2 => {
                put!(self, "shl $3, %{name}");
                put!(self, "jmp *{table}(%{name})");
                self.state.regs[index] = Kind::Number(24);
            }
            _ => put!(self, "{prefix}jmp *{table}(,%{name},8)"),
        }
        let at_jump = self.state.clone();
        let cases = 2 + self.random.below(3);
        let labels: Vec<String> = (0..cases).map(|_| self.label()).collect();
        let mut at_end: Option<State> = None;
        for (case, label) in labels.iter().enumerate() {
            self.place(label);
            // No table leads to an instruction that reads flags.
            let value = self.random.below(1000);
            if let Some(register) = self.free() {
                put!(self, "mov ${value}, %{}", LONGS[register]);
                self.state.regs[register] = Kind::Number(value as i64);
            } else {
                self.put("nop");
            }
            self.block(depth);
            if case + 1 < cases && self.random.once_in(3) {
                self.state.join(&at_jump);
                continue;
            }
            if case + 1 < cases {
                put!(self, "jmp {end}");
            }
            match &mut at_end {
                Some(state) => state.join(&self.state),
                None => at_end = Some(self.state.clone()),
            }
            self.state = at_jump.clone();
        }
        self.place(&end);
        self.state = at_end.unwrap_or_else(State::unknown);
        let _ = writeln!(self.tables, "{table}:");
        for case in 0..4 {
            let label = &labels[if case < cases { case } else { self.random.below(cases) }];
            let _ = writeln!(self.tables, "\t.quad {label}");
        }
    }

    /// A branch to a part that jumps back behind it, or further on.
    fn cold(&mut self) {
        let (part, back) = (self.label(), self.label());
        let condition = self.compare();
        put!(self, "j{condition} {part}");
        let before = self.state.clone();
        let out = std::mem::take(&mut self.out);
        self.in_cold = true;
        self.place(&part);
        for _ in 0..=self.random.below(5) {
            self.straight();
        }
        if self.random.once_in(3) {
            self.statement(1);
        }
        put!(self, "jmp {back}");
        self.in_cold = false;
        let part = std::mem::replace(&mut self.out, out);
        self.cold.push(part);
        let after = std::mem::replace(&mut self.state, before);
        for _ in 0..self.random.below(4) {
            self.straight();
        }
        self.place(&back);
        self.state.join(&after);
        for _ in 0..self.random.below(4) {
            self.straight();
        }
    }

    /// Code that is jumped over: what is before it and what is behind it are far from each other.
    fn gap(&mut self) {
        self.gap = false;
        let label = self.label();
        put!(self, "jmp {label}");
        let size = self.random.pick(&[3000, 9000, 70_000]);
        let _ = writeln!(self.out, "\t.skip {size}, 0x90");
        self.place(&label);
    }

    fn many_cold(&mut self) {
        let count = 66 + self.random.below(10);
        for _ in 0..count {
            self.cold();
        }
    }

    fn call(&mut self) {
        let first = self.functions / 2;
        if self.function >= first {
            return self.straight();
        }
        let to = self.random.range(first as i64, self.functions as i64 - 1);
        match (self.random.below(4), self.free()) {
            (0, Some(register)) => {
                put!(self, "mov $f{to}, %{}", LONGS[register]);
                put!(self, "call *%{}", QUAD[register]);
            }
            (1, _) => put!(self, "call *fs+{}(%rip)", to * 8),
            _ => put!(self, "call f{to}"),
        }
        self.state.regs = [Kind::Any; 16];
    }

    fn push(&mut self, depth: usize) {
        let (from, kind) = {
            let from = self.any();
            (from, self.state.regs[from])
        };
        put!(self, "push %{}", QUAD[from]);
        self.pushed += 8;
        self.block(depth.min(1));
        self.pushed -= 8;
        match self.free() {
            Some(to) => {
                put!(self, "pop %{}", QUAD[to]);
                self.state.regs[to] = kind;
            }
            None => self.put("lea 8(%rsp), %rsp"),
        }
    }

    fn any(&mut self) -> usize {
        self.random.pick(&[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    }

    /// A register that may be written.
    fn free(&mut self) -> Option<usize> {
        let locked = self.locked;
        (0..8).map(|_| self.any()).find(|register| locked >> register & 1 == 0)
    }

    /// A register with what `wanted` says.
    fn with(&mut self, wanted: impl Fn(Kind) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..16).filter(|&register| wanted(self.state.regs[register])).collect();
        (!found.is_empty()).then(|| self.random.pick(&found))
    }

    /// A place in the buffer.
    fn memory(&mut self) -> String {
        let pointer = self.with(|kind| matches!(kind, Kind::Pointer(..)));
        let number = self.with(|kind| matches!(kind, Kind::Number(_)));
        let disp = if self.random.once_in(2) { self.random.range(-128, 127) } else { self.random.range(-2000, 2000) };
        let scale = self.random.pick(&[1, 2, 4, 8]);
        let fits = |low: i64, high: i64| low + disp > -NEAR && high + disp < NEAR;
        let bound = |number: usize, state: &State| match state.regs[number] {
            Kind::Number(max) => max,
            _ => HALF,
        };
        match (pointer, number, self.random.below(8)) {
            (Some(base), Some(index), 0..=3) => {
                let (Kind::Pointer(low, high), max) = (self.state.regs[base], bound(index, &self.state)) else {
                    return format!("buf{disp:+}(%rip)");
                };
                if fits(low, high + max * scale) {
                    return format!("{disp}(%{},%{},{scale})", QUAD[base], QUAD[index]);
                }
                format!("(%{})", QUAD[base])
            }
            (Some(base), _, 0..=6) => {
                let Kind::Pointer(low, high) = self.state.regs[base] else { return "buf(%rip)".to_owned() };
                if fits(low, high) {
                    return format!("{disp}(%{})", QUAD[base]);
                }
                format!("(%{})", QUAD[base])
            }
            (None, Some(index), 0..=5) if fits(0, bound(index, &self.state) * scale) => {
                if scale == 1 {
                    format!("buf{disp:+}(%{})", QUAD[index])
                } else {
                    format!("buf{disp:+}(,%{},{scale})", QUAD[index])
                }
            }
            _ => format!("buf{disp:+}{}", self.random.pick(&["", "(%rip)"])),
        }
    }

    fn slot(&mut self) -> (usize, String) {
        let slot = self.random.below(SLOTS);
        let place = if self.red_zone { -8 * (slot as i64 + 1) } else { self.pushed + 8 * slot as i64 };
        (slot, format!("{place}(%rsp)"))
    }

    /// One instruction, or two that belong together.
    fn straight(&mut self) {
        let Some(to) = self.free() else { return self.put("nop") };
        let from = self.any();
        let (to64, to32, from64, from32) = (QUAD[to], LONGS[to], QUAD[from], LONGS[from]);
        let (old, other) = (self.state.regs[to], self.state.regs[from]);
        let mut new = Kind::Any;
        match self.random.below(34) {
            0..=3 => {
                let disp = self.random.range(-3000, 3000);
                let form =
                    self.random.pick(&["lea buf{}(%rip), %", "mov $buf{}, %"]).replace("{}", &format!("{disp:+}"));
                put!(self, "{form}{to64}");
                new = Kind::Pointer(disp, disp);
            }
            4 | 5 => {
                put!(self, "mov %{from64}, %{to64}");
                new = other;
            }
            6..=8 => {
                let mask = self.random.pick(&[3, 7, 15, 0xff, 0xff8, 0x3f0, 1]);
                if from != to {
                    put!(self, "mov %{from32}, %{to32}");
                }
                put!(self, "and ${mask}, %{to32}");
                new = Kind::Number(mask);
            }
            9..=11 => {
                let memory = self.memory();
                put!(self, "mov {memory}, %{}", self.random.pick(&[to64, to32, WORDS[to], BYTES[to]]));
            }
            12 => {
                let memory = self.memory();
                put!(self, "movzbl {memory}, %{to32}");
                new = Kind::Number(255);
            }
            13 => {
                let memory = self.memory();
                put!(self, "{} {memory}, %{}", self.random.pick(&["movslq", "movsbq", "movzwq"]), to64);
            }
            14..=16 => {
                let memory = self.memory();
                put!(self, "mov %{}, {memory}", self.random.pick(&[from64, from32, WORDS[from], BYTES[from]]));
                new = old;
            }
            17 => {
                let memory = self.memory();
                let operation = self.random.pick(&["add", "xor", "sub"]);
                put!(self, "{operation} %{}, {memory}", self.random.pick(&[from64, from32]));
                new = old;
            }
            18 => {
                let memory = self.memory();
                put!(self, "{} {memory}, %{to64}", self.random.pick(&["add", "xor", "imul", "xchg", "sub"]));
            }
            19 | 20 => {
                let add = self.random.range(-100, 300);
                put!(self, "add ${add}, %{to64}");
                new = old.plus(add, add);
            }
            21 => {
                let sub = self.random.range(1, 100);
                put!(self, "sub ${sub}, %{to64}");
                new = old.plus(-sub, -sub);
            }
            22 => {
                put!(self, "xor %{from64}, %{to64}");
                new = if from == to { Kind::Number(0) } else { Kind::Any };
            }
            23 => {
                let times = self.random.range(2, 9);
                put!(self, "imul ${times}, %{from64}, %{to64}");
                new = if let Kind::Number(max) = other { Kind::Number(0).plus(0, max * times) } else { Kind::Any };
            }
            24 => {
                let by = self.random.range(1, 3);
                put!(self, "shl ${by}, %{to64}");
                new = if let Kind::Number(max) = old { Kind::Number(0).plus(0, max << by) } else { Kind::Any };
            }
            25 => {
                put!(self, "inc %{to64}");
                new = old.plus(1, 1);
            }
            26 | 27 => {
                // The address of what another instruction would touch.
                let memory = self.memory();
                put!(self, "lea {memory}, %{to64}");
                new = Kind::Pointer(-NEAR + 1, NEAR - 1);
            }
            28 => {
                let condition = self.compare();
                put!(self, "cmov{condition} %{from64}, %{to64}");
                new = old.or(other);
            }
            29 => {
                if self.locked >> from & 1 == 0 {
                    put!(self, "xchg %{from64}, %{to64}");
                    self.state.regs[from] = old;
                    new = other;
                } else {
                    self.put("nop");
                    new = old;
                }
            }
            30 => {
                if let Some(index) = self.with(|kind| matches!(kind, Kind::Number(0..=15))) {
                    put!(self, "mov ptrs(,%{},8), %{to64}", QUAD[index]);
                    new = Kind::Pointer(-2000, 2000);
                } else {
                    put!(self, "mov seed(%rip), %{to64}");
                }
            }
            31 | 32 => {
                let (slot, place) = self.slot();
                if self.random.once_in(2) {
                    put!(self, "mov %{from64}, {place}");
                    self.state.slots[slot] = other;
                    new = old;
                } else {
                    put!(self, "mov {place}, %{to64}");
                    new = self.state.slots[slot];
                }
            }
            _ => {
                put!(self, "add %{from64}, %{to64}");
                new = match other {
                    Kind::Number(max) if from != to => old.plus(0, max),
                    _ => Kind::Any,
                };
            }
        }
        self.state.regs[to] = new;
    }
}
