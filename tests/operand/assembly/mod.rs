//! Generates x86-64 programs from a seed, as assembly text: functions that work on one buffer, with all kinds of control flow
//! of compiled and hand-written code.
//!
//! The assumptions of the recovery (`crates/recover/src/lib.rs`) hold for them: functions without `.cfi_startproc` have branches only
//! to places nearer than `LEADER_SPAN`, and data before them ends in zeros; no jump through a table leads to an instruction
//! that reads the flags.

use std::fmt::Write as _;

use super::random::{Kind, Random, NEAR};

/// Bytes on either side of the buffer's middle, the label `buf`.
const HALF: i64 = 64 << 10;
const SLOTS: usize = 6;
/// Lines of a function after which no new blocks are started, so that it stays shorter than `LEADER_SPAN`.
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
    /// Every branch is nearer than `LEADER_SPAN`: it may be tested without the ranges of its functions.
    pub near: bool,
}

/// A line; its parts may themselves take numbers from the generator.
macro_rules! put {
    ($maker:expr, $($part:tt)*) => {{
        let line = format!($($part)*);
        $maker.put(&line);
    }};
}

mod instructions;

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
    /// Parts of the function that are placed elsewhere.
    cold: Vec<String>,
    /// These may be far.
    far: bool,
    in_cold: bool,
    /// How the function jumps to its own places through tables, if it does.
    jumps: Option<usize>,
    /// Code that never runs may still make it long.
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
    // One such jump affects all functions near it without known ranges.
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

    /// Returns, or continues in another function.
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

    /// The bytes between functions. Before a function without a known range, data ends in zeros.
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

    /// The detached parts of the function: after it, or in another section.
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
        for (index, part) in cold.iter().enumerate() {
            if index > 50 {
                // Far from the others, so that reading those does not find it.
                self.out.push_str(if own { "\t.cfi_endproc\n" } else { "" });
                self.out.push_str("\t.skip 9000, 0x90\n");
                self.out.push_str(if own { "\t.cfi_startproc\n" } else { "" });
            }
            self.out.push_str(part);
        }
        if own {
            self.out.push_str("\t.cfi_endproc\n");
        }
    }

    fn statement(&mut self, depth: usize) {
        let blocks = depth > 0 && self.lines < LONG;
        match self.random.below(if blocks { 16 } else { 7 }) {
            11 | 12 if self.jumps.is_some() => self.switch(depth - 1),
            7 | 8 | 11 => self.branch(depth - 1),
            9 | 10 => self.counted(depth - 1),
            13 if !self.in_cold && self.gap && self.random.once_in(2) => self.gap(),
            13 if !self.in_cold => self.cold(),
            // A locked register would have to outlive the call.
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

    /// A branch to a part that jumps back to just after it, or further on.
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

    /// Code that is jumped over: the code before it and after it are far from each other.
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
}
