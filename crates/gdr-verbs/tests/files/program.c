/* Opens files in the ways of common programs, to be run with the library in LD_PRELOAD. The argument selects a part;
   the exit status is 0 if every check in it succeeds. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
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
	/* The FIFO has no writer, so this blocks until the thread is cancelled. */
	open(path, O_RDONLY);
	pthread_cleanup_pop(0);
	return NULL;
}

/* A thread that blocks in open(2) can be cancelled, and its cleanup handlers run. */
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

/* A new file has the mode passed to open, and a successful call does not change errno. */
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

/* A forked child reads files, and a program that it executes inherits the descriptors. */
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

/* After the standard streams are closed, open returns their descriptor numbers. */
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

/* Folders outside the library's devices are listed as without the library. */
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

/* Relative paths work while the working folder belongs to a device. */
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

/* Prints the result and errno of each function for a path, and for an invalid output buffer. */
static void say(const char *path, const char *name)
{
	static int home = -1;
	static char room[PATH_MAX];
	void *volatile nowhere = (void *)1;
	struct stat status;
	struct statx extended;
	struct dirent **list;
	DIR *dir;
	FILE *file;

	if (home < 0)
		CHECK((home = open(".", O_PATH)) >= 0);
#define SAY(what)                                                                      \
	do {                                                                           \
		errno = 0;                                                             \
		long result = (long)(what);                                            \
		int is = errno;                                                        \
		printf("%s: %s: %ld %d\n", name, #what, result, is);                    \
	} while (0)
	SAY(close(open(path, O_RDONLY)));
	SAY(close(open(path, O_RDONLY | O_NOFOLLOW)));
	SAY(open(path, O_TMPFILE | O_RDONLY));
	SAY(open(path, O_WRONLY | O_DIRECTORY));
	SAY(close(openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY)));
	SAY(close(openat(-5, path, O_RDONLY)));
	SAY((file = fopen(path, "r")) && !fclose(file));
	SAY(stat(path, &status));
	SAY(stat(path, nowhere));
	SAY(lstat(path, &status));
	SAY(fstat(-5, &status));
	SAY(fstatat(-5, path, &status, AT_EMPTY_PATH));
	SAY(fstatat(AT_FDCWD, path, &status, 1 << 30));
	SAY(fstatat(0, path, &status, 0));
	SAY(statx(-5, path, AT_EMPTY_PATH, STATX_BASIC_STATS, &extended));
	SAY(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, nowhere));
	SAY(access(path, R_OK));
	SAY(access(path, 64));
	SAY(faccessat(-5, path, R_OK, AT_EACCESS));
	SAY(readlink(path, room, sizeof(room)));
	SAY(readlink(path, room, 0));
	SAY(readlink(path, nowhere, sizeof(room)));
	SAY(readlinkat(-5, path, room, sizeof(room)));
	SAY(getxattr(path, "user.none", NULL, 0));
	SAY(listxattr(path, room, sizeof(room)) >= 0);
	SAY(chdir(path) ? -1 : fchdir(home));
	/* The C library itself dereferences the paths of these functions, so an invalid one would crash. */
	if ((uintptr_t)path >= sizeof(room)) {
		SAY((dir = opendir(path)) && !closedir(dir));
		SAY(realpath(path, room) != NULL);
		SAY(scandir(path, &list, NULL, by_name) >= 0);
	}
}

/* Passes unusual paths to each function; the caller compares the output with a run without the library. */
static void hostile(const char *folder)
{
	static char dots[PATH_MAX + 64], name[300], just[PATH_MAX];
	long page = sysconf(_SC_PAGESIZE);
	char *end;

	CHECK(chdir(folder) == 0);
	CHECK(close(open("file", O_CREAT | O_WRONLY, 0600)) == 0 && mkdir("folder", 0700) == 0);
	CHECK(symlink("file", "link") == 0 && symlink("self", "self") == 0);
	CHECK(symlink("/sys", "sys") == 0 && symlink("absent", "dangling") == 0);
	CHECK(mkfifo("fifo", 0600) == 0 && mkdir("sys2", 0) == 0);
	memset(dots, '/', sizeof(dots) - 1);
	memset(name, 'x', sizeof(name) - 1);
	memset(just, '/', sizeof(just) - 1);
	memcpy(just + sizeof(just) - 4, "sys", 3);
	/* The strings below end with a mapped page, so that a function which reads past one faults. */
	end = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(end != MAP_FAILED && munmap(end + page, page) == 0);
	end += page;
	static const char *const paths[] = {
		"",	    "/",	"//",	     ".",	     "..",	       "file",
		"link",	    "self",	"dangling",  "folder",	     "folder/",	       "file/",
		"file/x",   "sys2/x",	"none",	     "none/x",	     "../none",	       "sys/class/none",
		"/d",	    "/de",	"/dev",	     "/dev/",	     "/dev/none",      "/dev/infiniban",
		"/s",	    "/sys",	"/sys/",     "/sys/none",    "/sys/class/none","/dev/null",
		"/dev/null/x", "/proc/self/exe", "/proc/self/fd/99", "/sys/devices/none",
	};
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		say(paths[i], paths[i]);
	say("/\xff\xfe", "not UTF-8");
	say(dots, "longer than PATH_MAX");
	say(name, "longer than NAME_MAX");
	say(just, "as long as PATH_MAX");
	say(NULL, "NULL");
	say((char *)1, "(char *)1");
	for (int len = 1; len <= 5; len++) {
		memcpy(end - len - 1, "/dev/", len);
		end[-1] = 0;
		say(end - len - 1, "at the end of its page");
	}
}

/* After chroot, and with standard streams closed, a program sees only the files of the new root. */
static void changed_root(const char *folder)
{
	struct stat status;
	int fd;

	CHECK(chdir(folder) == 0 && mkdir("sys", 0700) == 0 && mkdir("sys/class", 0700) == 0);
	CHECK(close(open("sys/class/none", O_CREAT | O_WRONLY, 0600)) == 0);
	if (unshare(CLONE_NEWUSER | CLONE_FS) || chroot(".")) {
		puts("skipped");
		return;
	}
	close(0);
	close(2);
	CHECK(chdir("/") == 0 && access("/proc", F_OK) == -1 && errno == ENOENT);
	CHECK((fd = open("/sys/class/none", O_RDONLY)) == 0 && fstat(fd, &status) == 0);
	CHECK(S_ISREG(status.st_mode) && open("/sys/class/net", O_RDONLY) == -1);
	CHECK(errno == ENOENT && realpath("sys/../sys/class", NULL));
	CHECK(open(folder, O_RDONLY) == -1 && errno == ENOENT);
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(const char *);
	} parts[] = {
		{ "cancelled", cancelled }, { "created", created }, { "inherited", inherited },
		{ "closed", closed },	    { "foreign", foreign },
		{ "inside", inside },	    { "hostile", hostile },
		{ "changed-root", changed_root },
	};

	for (size_t i = 0; count == 3 && i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (!strcmp(arguments[1], parts[i].name)) {
			parts[i].run(arguments[2]);
			return 0;
		}
	}
	return 3;
}
