//! Single instructions of a generated program, and what is known about the registers after them.

use super::{Kind, Maker, State, BYTES, HALF, LONGS, NEAR, QUAD, SLOTS, WORDS};

impl Maker {
    pub(super) fn any(&mut self) -> usize {
        self.random.pick(&[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    }

    /// A register that may be written.
    pub(super) fn free(&mut self) -> Option<usize> {
        let locked = self.locked;
        (0..8).map(|_| self.any()).find(|register| locked >> register & 1 == 0)
    }

    /// A register that satisfies `wanted`.
    pub(super) fn with(&mut self, wanted: impl Fn(Kind) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..16).filter(|&register| wanted(self.state.regs[register])).collect();
        (!found.is_empty()).then(|| self.random.pick(&found))
    }

    /// A place in the buffer.
    pub(super) fn memory(&mut self) -> String {
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

    pub(super) fn slot(&mut self) -> (usize, String) {
        let slot = self.random.below(SLOTS);
        let place = if self.red_zone { -8 * (slot as i64 + 1) } else { self.pushed + 8 * slot as i64 };
        (slot, format!("{place}(%rsp)"))
    }

    /// One instruction, or two that belong together.
    pub(super) fn straight(&mut self) {
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
                // The address that another instruction would touch.
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
