/*
 * A workload of known truth, inside the register protocol of the simulated PMU (README.md).
 *
 *     workload [-s SECONDS] [-n LINES] [-d DATA_SRC] [-l LATENCY]
 *
 * Group A: two threads of one process on a private buffer (huge pages, where the kernel gives them). Group B: two processes on
 * one MAP_SHARED buffer, at different addresses. Each touches LINES cache lines of it (4096), evenly. Says so on stdout in
 * the lines of tests/programs/README.md. DATA_SRC and LATENCY are for all accesses; else they follow from the line.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE 64
#define HUGE (2UL << 20)

static double seconds = 1;
static size_t lines = 4096;
static uint64_t data_src, latency;
static pthread_barrier_t *ready;

struct member {
	const char *name, *group;
	char *buffer;
	uint32_t seed;
};

/* Works on one address for a while; the registers say on which. */
static void work(char *address, uint64_t times)
{
#ifdef __aarch64__
	/* The simulated SPE knows no DATA_SRC and LATENCY. */
	asm volatile("mov x28, %0\n\t"
		     "mov x27, %2\n"
		     "1:\n\t"
		     "ldr x0, [x28]\n\t"
		     "ldr x1, [x28]\n\t"
		     "subs %1, %1, #1\n\t"
		     "b.ne 1b\n\t"
		     "mov x27, xzr\n\t"
		     : "+r"(address), "+r"(times)
		     : "r"(0x46414b45504d5531UL)
		     : "x0", "x1", "x27", "x28", "memory", "cc");
#else
	asm volatile("mov %0, %%r15\n\t"
		     "mov %2, %%r13\n\t"
		     "mov %3, %%r12\n\t"
		     "movabs $0x46414b45504d5531, %%r14\n"
		     "1:\n\t"
		     "mov (%%r15), %%rax\n\t"
		     "mov (%%r15), %%rdx\n\t"
		     "dec %1\n\t"
		     "jnz 1b\n\t"
		     "xor %%r14d, %%r14d\n\t"
		     : "+r"(address), "+r"(times)
		     : "m"(data_src), "m"(latency)
		     : "rax", "rdx", "r12", "r13", "r14", "r15", "memory", "cc");
#endif
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *run(void *argument)
{
	struct member *m = argument;
	uint32_t x = m->seed;
	double end;

	prctl(PR_SET_NAME, m->name);
	printf("buffer group=%s pid=%d start=%p end=%p\nthread group=%s pid=%d tid=%ld name=%s\n", m->group, getpid(),
	       (void *)m->buffer, (void *)(m->buffer + lines * LINE), m->group, getpid(), syscall(SYS_gettid), m->name);
	fflush(stdout);
	pthread_barrier_wait(ready);
	for (end = now() + seconds; now() < end;)
		for (int i = 0; i < 16; i++) {
			x = x * 1664525 + 1013904223;
			work(m->buffer + (x >> 8) % lines * LINE + (x >> 3 & 56), 2000);
		}
	return NULL;
}

static char *map(size_t size, int flags)
{
	char *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (buffer == MAP_FAILED) {
		perror("workload: mmap");
		exit(1);
	}
	return buffer;
}

int main(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "s:n:d:l:")) > 0)
		switch (option) {
		case 's': seconds = atof(optarg); break;
		case 'n': lines = strtoul(optarg, NULL, 0); break;
		case 'd': data_src = strtoull(optarg, NULL, 0); break;
		case 'l': latency = strtoull(optarg, NULL, 0); break;
		default: return 2;
		}
	size_t size = (lines * LINE + HUGE - 1) & ~(HUGE - 1);
	char *private = map(size + HUGE, MAP_PRIVATE), *shared = map(size, MAP_SHARED);
	private = (char *)(((uintptr_t)private + HUGE - 1) & ~(HUGE - 1));
	madvise(private, size, MADV_HUGEPAGE);
	memset(private, 1, size);
	memset(shared, 1, size);

	/* Everybody begins at once. */
	ready = (pthread_barrier_t *)map(4096, MAP_SHARED);
	pthread_barrierattr_t across;
	pthread_barrierattr_init(&across);
	pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(ready, &across, 5);

	struct member a[2] = { { "grpA-0", "A", private, 1 }, { "grpA-1", "A", private, 2 } };
	struct member b[2] = { { "grpB-0", "B", shared, 3 }, { "grpB-1", "B", shared, 4 } };
	for (int i = 0; i < 2; i++)
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (i) {
				b[i].buffer = mremap(shared, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)0x7e0000000000);
				if (b[i].buffer == MAP_FAILED) {
					perror("workload: mremap");
					exit(1);
				}
			}
			run(&b[i]);
			exit(0);
		}
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, run, &a[i]);
	pthread_barrier_wait(ready);
	printf("ready pid=%d\n", getpid());
	fflush(stdout);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	while (wait(NULL) > 0)
		;
	return 0;
}
