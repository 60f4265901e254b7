// Functions in functions that the compiler puts into their callers. Build with -O2 -g -fno-omit-frame-pointer.
//   calls ROUNDS
#include <stdlib.h>

#define INLINED static inline __attribute__((always_inline))
#ifdef __clang__
#define NOT_INLINED __attribute__((noinline))
#else
#define NOT_INLINED __attribute__((noinline, noclone))
#endif

volatile unsigned long sink;

INLINED unsigned long mixed(unsigned long value) {
    value ^= value << 13;
    value ^= value >> 7;
    value ^= value << 17;
    return value;
}

INLINED unsigned long often(unsigned long value, int count) {
    for (int at = 0; at < count; at++) {
        value = mixed(value) + at;
        sink += value;
    }
    return value;
}

INLINED unsigned long twice(unsigned long value) {
    value = often(value, 20);
    if (value % 3 == 0)
        value = mixed(value) / 3;
    return often(value, 10) % 1000003;
}

INLINED unsigned long chosen(unsigned long value) {
    switch (value % 4) {
    case 0:
        return twice(value);
    case 1:
        return mixed(value) / 7 % (sink | 1);
    default:
        return often(value, 5);
    }
}

NOT_INLINED unsigned long leaf(unsigned long value) { return chosen(mixed(value)); }

NOT_INLINED unsigned long caller(unsigned long value) {
    value = leaf(twice(value));
    // No tail call.
    sink += value;
    return mixed(value);
}

INLINED unsigned long between(unsigned long value) { return caller(value) + leaf(value + 1); }

NOT_INLINED unsigned long down(unsigned long value, int depth) {
    unsigned long below = depth > 0 ? down(mixed(value), depth - 1) : between(value);
    sink += below;
    return below + often(value, 2);
}

int main(int argc, char **argv) {
    unsigned long value = 88172645463325252;
    for (int round = argc > 1 ? atoi(argv[1]) : 1; round > 0; round--)
        value += down(value, round % 8);
    sink = value;
    return 0;
}
