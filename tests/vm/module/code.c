// SPDX-License-Identifier: GPL-2.0
/*
 * What interrupted kernel code accesses next: the first memory operand ahead whose address nothing on the way to it changes.
 */
#include <asm/insn.h>

#include "simpmu.h"

/* So many instructions are followed, none behind a branch. */
#define AHEAD 8

static int (*decode)(struct insn *, const void *, int, enum insn_mode);

bool sim_find_decoder(void)
{
	decode = sim_find("insn_decode");
	return decode;
}

static u64 value(struct pt_regs *regs, unsigned int number)
{
	static const u8 places[16] = {
		offsetof(struct pt_regs, ax), offsetof(struct pt_regs, cx), offsetof(struct pt_regs, dx), offsetof(struct pt_regs, bx),
		offsetof(struct pt_regs, sp), offsetof(struct pt_regs, bp), offsetof(struct pt_regs, si), offsetof(struct pt_regs, di),
		offsetof(struct pt_regs, r8), offsetof(struct pt_regs, r9), offsetof(struct pt_regs, r10), offsetof(struct pt_regs, r11),
		offsetof(struct pt_regs, r12), offsetof(struct pt_regs, r13), offsetof(struct pt_regs, r14), offsetof(struct pt_regs, r15),
	};

	return *(u64 *)((char *)regs + places[number & 15]);
}

/* What an instruction does to its operand if that is memory, as Intel's manual has them in "Opcode Map" (volume 2, appendix A). */
enum does { LOADS, STORES, NOTHING, STOPS };

static enum does in_second_map(const struct insn *insn)
{
	switch (insn->opcode.bytes[1]) {
	case 0x0d: /* Prefetch. */
	case 0x18 ... 0x1f:
		return NOTHING;
	case 0x40 ... 0x4f: /* cmov */
	case 0xaf: /* imul */
	case 0xb6 ... 0xb7: /* movzx, movsx */
	case 0xbe ... 0xbf:
		return LOADS;
	case 0x90 ... 0x9f: /* setcc */
	case 0xb0 ... 0xb1: /* cmpxchg */
	case 0xc0 ... 0xc1: /* xadd */
		return STORES;
	default:
		return STOPS;
	}
}

static enum does in_first_map(const struct insn *insn)
{
	u8 opcode = insn->opcode.bytes[0], more = X86_MODRM_REG(insn->modrm.value);

	switch (opcode) {
	case 0x00 ... 0x3f: /* add, or, adc, sbb, and, sub, xor, cmp */
		if ((opcode & 7) < 2)
			return opcode >= 0x38 ? LOADS : STORES;
		return (opcode & 7) < 4 ? LOADS : STOPS;
	case 0x80 ... 0x81:
	case 0x83:
		return more == 7 ? LOADS : STORES;
	case 0x63: /* movsxd */
	case 0x84 ... 0x85: /* test */
	case 0x8a ... 0x8b: /* mov */
		return LOADS;
	case 0x86 ... 0x87: /* xchg */
	case 0x88 ... 0x89: /* mov */
	case 0xc0 ... 0xc1: /* Shifts. */
	case 0xd0 ... 0xd3:
		return STORES;
	case 0xc6 ... 0xc7: /* mov */
		return more ? STOPS : STORES;
	case 0xf6 ... 0xf7: /* test, not, neg */
		return more < 2 ? LOADS : more < 4 ? STORES : STOPS;
	case 0xfe ... 0xff: /* inc, dec */
		return more < 2 ? STORES : STOPS;
	case 0x8d: /* lea */
	case 0x90: /* nop */
	case 0xb8 ... 0xbf: /* mov of a constant */
		return NOTHING;
	default:
		return STOPS;
	}
}

/* Where the operand is, of which the registers in `changed` are not known any more; false if these are among its own. */
static bool address(const struct insn *insn, struct pt_regs *regs, u64 ip, u16 changed, u64 *addr)
{
	u32 rex = insn->rex_prefix.value;
	u8 mod = X86_MODRM_MOD(insn->modrm.value), rm = X86_MODRM_RM(insn->modrm.value), base = rm, index;
	u64 sum = insn->displacement.nbytes ? (s64)(s32)insn->displacement.value : 0;

	if (!mod && rm == 5) {
		*addr = ip + insn->length + sum;
		return true;
	}
	if (rm == 4) {
		base = X86_SIB_BASE(insn->sib.value);
		index = X86_SIB_INDEX(insn->sib.value) | (X86_REX_X(rex) ? 8 : 0);
		if (index != 4) {
			if (changed & BIT(index))
				return false;
			sum += value(regs, index) << X86_SIB_SCALE(insn->sib.value);
		}
		if (!mod && base == 5) {
			*addr = sum;
			return true;
		}
	}
	base |= X86_REX_B(rex) ? 8 : 0;
	*addr = sum + value(regs, base);
	return !(changed & BIT(base));
}

/* Per-CPU memory, whose address the registers don't have. */
static bool has_segment(const struct insn *insn)
{
	int i;

	for (i = 0; i < 4; i++)
		if (insn->prefixes.bytes[i] == 0x64 || insn->prefixes.bytes[i] == 0x65)
			return true;
	return false;
}

bool sim_next_access(struct pt_regs *regs, u64 *addr, bool *is_store)
{
	u64 ip = regs->ip;
	u16 changed = 0;
	int i;

	for (i = 0; i < AHEAD; i++) {
		struct insn insn;
		enum does does;
		u32 rex;

		if (decode(&insn, (const void *)ip, MAX_INSN_SIZE, INSN_MODE_KERN))
			return false;
		/* A copy, or what no kernel of these has. */
		if (insn.vex_prefix.nbytes || insn.opcode.nbytes > 2)
			return false;
		does = insn.opcode.bytes[0] == 0x0f ? in_second_map(&insn) : in_first_map(&insn);
		if (does == STOPS)
			return false;
		rex = insn.rex_prefix.value;
		if (!insn.modrm.nbytes) {
			changed |= BIT((insn.opcode.bytes[0] & 7) | (X86_REX_B(rex) ? 8 : 0));
		} else {
			if (X86_MODRM_MOD(insn.modrm.value) != 3) {
				if (does != NOTHING && !has_segment(&insn) && address(&insn, regs, ip, changed, addr)) {
					*is_store = does == STORES;
					return true;
				}
			} else {
				changed |= BIT(X86_MODRM_RM(insn.modrm.value) | (X86_REX_B(rex) ? 8 : 0));
			}
			changed |= BIT(X86_MODRM_REG(insn.modrm.value) | (X86_REX_R(rex) ? 8 : 0));
		}
		/* That of cmpxchg. */
		changed |= insn.opcode.bytes[0] == 0x0f ? BIT(0) : 0;
		ip += insn.length;
	}
	return false;
}
