// Busy threads of given names, for the tests of schedulers: `busy COPIES PROCESS NAME...` is a process with this name, and with so
// many threads of each further name that never sleep.
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *spin(void *name)
{
	volatile unsigned long rounds = 0;

	prctl(PR_SET_NAME, name);
	/* scx_layered looks at a new name when the thread wakes up. */
	usleep(1000);
	for (;;)
		rounds++;
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
