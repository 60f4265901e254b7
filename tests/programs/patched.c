// Code that the program changed: in the file it reads the buffer of "other", in memory that of "own".
#include "common.h"
#include <sys/mman.h>
#define LEN (1u << 20)

void hot(uint32_t *other, uint32_t *own, long from, long count);
asm(".text\n.balign 4096\n.globl hot\n.type hot,@function\nhot:\n.cfi_startproc\n"
    "1: movl (%rdi,%rdx,4),%eax\n" // 8b 04 97; with rsi 8b 04 96
    "incl %edx\nandl $0x3ffff,%edx\ndecq %rcx\njne 1b\nret\n.cfi_endproc\n.size hot,.-hot\n.balign 4096\n");

static uint32_t *other, *own;

static void *work(void *unused) {
    say_thread("own", "patched");
    while (!atomic_load(&stop))
        hot(other, own, 0, 1000000);
    return unused;
}

int main(int argc, char **argv) {
    unsigned char *code = (unsigned char *)hot;
    if (mprotect(code, 4096, PROT_READ | PROT_WRITE) || code[2] != 0x97)
        return 1;
    code[2] = 0x96;
    mprotect(code, 4096, PROT_READ | PROT_EXEC);
    other = map_buffer(LEN, 0);
    own = map_buffer(LEN, 0);
    say_buffer("other", other, LEN);
    say_buffer("own", own, LEN);
    pthread_t thread = start_thread(work, NULL);
    run_for(seconds_of(argc, argv));
    pthread_join(thread, NULL);
    return 0;
}
