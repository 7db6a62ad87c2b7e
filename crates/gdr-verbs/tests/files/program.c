/* A program that opens files as programs do, with the library for LD_PRELOAD before it. Its argument names what
   it does; it ends with 0 if that is as it should be. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUID "/sys/class/infiniband/gdr0/node_guid"

#define CHECK(condition)                                                               \
	do {                                                                           \
		if (!(condition)) {                                                    \
			dprintf(2, "line %d: %s (%s)\n", __LINE__, #condition,          \
				strerror(errno));                                      \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

static int cleaned;

static void clean(void *unused)
{
	(void)unused;
	cleaned = 1;
}

static void *open_fifo(void *path)
{
	pthread_cleanup_push(clean, NULL);
	/* No one writes, so this waits until it is cancelled. */
	open(path, O_RDONLY);
	pthread_cleanup_pop(0);
	return NULL;
}

/* A thread that waits in open(2) is cancelled, and its handlers run. */
static void cancelled(const char *folder)
{
	char path[4096];
	pthread_t thread;
	void *result;

	snprintf(path, sizeof(path), "%s/fifo", folder);
	CHECK(mkfifo(path, 0600) == 0);
	CHECK(pthread_create(&thread, NULL, open_fifo, path) == 0);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED && cleaned);
}

/* The mode of a new file is the one of the call, and errno stays where a call succeeds. */
static void created(const char *folder)
{
	char path[4096];
	struct stat status;
	int fd;

	umask(0);
	snprintf(path, sizeof(path), "%s/new", folder);
	errno = 77;
	fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0640);
	CHECK(fd >= 0 && errno == 77);
	CHECK(fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0640);
	CHECK(open(path, O_CREAT | O_EXCL | O_RDWR, 0640) == -1 && errno == EEXIST);
	close(fd);
	fd = openat(AT_FDCWD, path, O_RDONLY);
	CHECK(fd >= 0 && read(fd, path, 1) == 0);
}

/* A forked child reads files, and a program that it becomes has the descriptors of its parent. */
static void inherited(const char *folder)
{
	char line[32], again[32];
	int fd = open(GUID, O_RDONLY), status;

	(void)folder;
	CHECK(fd >= 0 && read(fd, line, sizeof(line)) == 20);
	CHECK(lseek(fd, 0, SEEK_SET) == 0);
	pid_t child = fork();
	if (child == 0) {
		FILE *file = fopen(GUID, "r");
		CHECK(file && fgets(again, sizeof(again), file) && !memcmp(line, again, 20));
		dup2(fd, 0);
		execlp("grep", "grep", "-q", "^0200:", NULL);
		_exit(2);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A program that has closed its standard files gets their numbers. */
static void closed(const char *folder)
{
	(void)folder;
	close(0);
	close(1);
	CHECK(open(GUID, O_RDONLY) == 0);
	CHECK(open("/dev/null", O_WRONLY) == 1);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* Folders of the kernel are listed as ever. */
static void foreign(const char *folder)
{
	struct dirent **list;
	struct dirent *entry;
	int found = 0, count;
	DIR *dir = opendir(folder);

	CHECK(dir);
	CHECK(openat(dirfd(dir), "mark", O_CREAT | O_WRONLY, 0600) >= 0);
	rewinddir(dir);
	long start = telldir(dir);
	while ((entry = readdir(dir)))
		found += !strcmp(entry->d_name, "mark");
	seekdir(dir, start);
	while ((entry = readdir(dir)))
		found += !strcmp(entry->d_name, "mark");
	CHECK(found == 2 && closedir(dir) == 0);
	count = scandir(folder, &list, NULL, by_name);
	CHECK(count == 3 && !strcmp(list[2]->d_name, "mark"));
	char *real = realpath(folder, NULL);
	CHECK(real && !strcmp(real, folder));
	CHECK(opendir("/nonexistent") == NULL && errno == ENOENT);
	CHECK(fopen("/nonexistent", "r") == NULL && errno == ENOENT);
}

/* The working folder is one of a device. */
static void inside(const char *folder)
{
	char room[64], small[4];
	struct dirent **list;
	struct stat status;
	glob_t found;
	int fd;

	(void)folder;
	CHECK(chdir("/sys/class/infiniband") == 0);
	CHECK(getcwd(room, sizeof(room)) && !strcmp(room, "/sys/class/infiniband"));
	CHECK(getcwd(small, sizeof(small)) == NULL && errno == ERANGE);
	CHECK(stat("", &status) == -1 && errno == ENOENT);
	CHECK(stat("none", &status) == -1 && errno == ENOENT);
	CHECK(stat("gdr0/node_guid", &status) == 0 && S_ISREG(status.st_mode));
	CHECK(scandir(".", &list, NULL, by_name) == 3 && !strcmp(list[2]->d_name, "gdr0"));
	CHECK(glob("*/node_guid", 0, NULL, &found) == 0 && found.gl_pathc == 1);
	CHECK((fd = open("gdr0", O_RDONLY | O_DIRECTORY)) >= 0 && fchdir(fd) == 0);
	CHECK(access("node_guid", R_OK) == 0);
	CHECK(chdir("/proc/self") == 0 && access("status", R_OK) == 0);
	CHECK(getcwd(room, sizeof(room)) && !strncmp(room, "/proc/", 6));
	CHECK(access("node_guid", R_OK) == -1 && errno == ENOENT);
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(const char *);
	} parts[] = {
		{ "cancelled", cancelled }, { "created", created }, { "inherited", inherited },
		{ "closed", closed },	    { "foreign", foreign },
		{ "inside", inside },
	};

	for (size_t i = 0; count == 3 && i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (!strcmp(arguments[1], parts[i].name)) {
			parts[i].run(arguments[2]);
			return 0;
		}
	}
	return 3;
}
