// Says where the instruction is that `inner` puts into `outer`, by way of `middle`, and waits until its input ends.
#include <stdio.h>

extern const char here[];

// With LIBRARY, `inner` is as if it were in a header of a library.
#ifdef LIBRARY
#line 1 "/usr/include/inner.h"
#endif
static inline __attribute__((always_inline)) void inner(void) {
    __asm__ volatile("here: nop\n\tnop\n\tnop\n\tnop");
}
#ifdef LIBRARY
#line 1 "middle.c"
#endif

static inline __attribute__((always_inline)) void middle(void) {
    inner();
}

__attribute__((noinline)) void outer(void) {
    middle();
}

int main(void) {
    outer();
    printf("at outer %lx\nready\n", (unsigned long)here);
    fflush(stdout);
    getchar();
    return 0;
}
