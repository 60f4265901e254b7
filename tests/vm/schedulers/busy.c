// Busy threads of given names, for the tests of schedulers: `busy COPIES PROCESS NAME...` is a process with this name, and with so
// many threads of each further name that hardly ever sleep.
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *spin(void *name)
{
	volatile unsigned long rounds = 0;

	/*
	 * scx_layered looks for a thread's layer when it wakes up after it took a name: one that never sleeps stays where it is. It
	 * can miss a name, as the kernel leaves out its program on a CPU where that was preempted in another thread.
	 */
	for (;;)
		if (rounds++ % 1000000 == 0) {
			prctl(PR_SET_NAME, name);
			usleep(1000);
		}
	return NULL;
}

int main(int argc, char **argv)
{
	int copies = argc > 2 ? atoi(argv[1]) : 0;
	pthread_t thread;

	if (copies < 1)
		return 2;
	prctl(PR_SET_NAME, argv[2]);
	for (int at = 3; at < argc; at++)
		for (int copy = 0; copy < copies; copy++)
			if (pthread_create(&thread, NULL, spin, argv[at]))
				return 1;
	for (;;)
		pause();
}
