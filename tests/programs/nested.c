// As inlined.c, with debug information that nests two million inlined functions in `outer`: who reads it function in function has
// no stack that is deep enough.
#include <stdio.h>

__attribute__((noinline)) void outer(void) {
    __asm__ volatile(".file 1 \"nested.c\"\n\t.loc 1 7\n\tnop\n\tnop\n\tnop\n\tnop");
}

__asm__(".section .debug_abbrev,\"\",@progbits\n"
        // A unit with range and lines, a function with name and range, an inlined function without anything; each has others in it.
        ".byte 1, 0x11, 1, 0x11, 1, 0x12, 7, 0x10, 0x17, 0, 0\n"
        ".byte 2, 0x2e, 1, 0x03, 8, 0x11, 1, 0x12, 7, 0, 0\n"
        ".byte 3, 0x1d, 1, 0, 0\n"
        ".byte 0\n"
        ".section .debug_info,\"\",@progbits\n"
        ".long end_of_unit - begin_of_unit\n"
        "begin_of_unit: .short 4\n"
        ".long 0\n"
        ".byte 8\n"
        ".byte 1\n"
        ".quad outer, 64\n"
        ".long 0\n"
        ".byte 2\n"
        ".asciz \"outer\"\n"
        ".quad outer, 64\n"
        ".fill 2000000, 1, 3\n"
        "end_of_unit:\n"
        ".text\n");

int main(void) {
    outer();
    printf("at outer %lx\nready\n", (unsigned long)outer);
    fflush(stdout);
    getchar();
    return 0;
}
