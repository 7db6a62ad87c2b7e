/*
 * A fixed number of calls of one kind that many programs make, for `cargo xtask files-bench`.
 *
 *     files CALL COUNT FOLDER
 *
 * The folder has `file`, `link` to it, and other entries. Printed are the nanoseconds of CPU time that the calls
 * took.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char file[PATH_MAX], absent[PATH_MAX], symlink_path[PATH_MAX], room[PATH_MAX];
static struct stat status;
static const char *folder;
static int null, folder_fd;

static int closed(int fd) {
    return fd < 0 ? -1 : close(fd);
}

static int fails(int result) {
    return result == -1 ? 0 : -1;
}

static int call_open(void) {
    return closed(open(file, O_RDONLY));
}

static int call_open_absent(void) {
    return fails(open(absent, O_RDONLY));
}

static int call_open_device(void) {
    return closed(open("/dev/null", O_RDWR));
}

static int call_openat(void) {
    return closed(openat(folder_fd, "file", O_RDONLY));
}

static int call_fopen(void) {
    FILE *opened = fopen(file, "r");
    return opened == NULL ? -1 : fclose(opened);
}

static int call_stat(void) {
    return stat(file, &status);
}

static int call_stat_absent(void) {
    return fails(stat(absent, &status));
}

static int call_stat_relative(void) {
    return stat("file", &status);
}

static int call_lstat(void) {
    return lstat(symlink_path, &status);
}

static int call_fstat(void) {
    return fstat(folder_fd, &status);
}

static int call_access(void) {
    return access(file, R_OK);
}

static int call_readlink(void) {
    return readlink(symlink_path, room, sizeof room) > 0 ? 0 : -1;
}

static int call_realpath(void) {
    return realpath(file, room) != NULL ? 0 : -1;
}

static int call_write(void) {
    return write(null, file, 1) == 1 ? 0 : -1;
}

static int call_dup(void) {
    return closed(dup(null));
}

static int call_list(void) {
    DIR *listed = opendir(folder);
    if (listed == NULL) {
        return -1;
    }
    while (readdir(listed) != NULL) {
    }
    return closedir(listed);
}

static const struct {
    const char *name;
    int (*call)(void);
} calls[] = {
    {"open", call_open},
    {"open-absent", call_open_absent},
    {"open-device", call_open_device},
    {"openat", call_openat},
    {"fopen", call_fopen},
    {"stat", call_stat},
    {"stat-absent", call_stat_absent},
    {"stat-relative", call_stat_relative},
    {"lstat", call_lstat},
    {"fstat", call_fstat},
    {"access", call_access},
    {"readlink", call_readlink},
    {"realpath", call_realpath},
    {"write", call_write},
    {"dup", call_dup},
    {"list", call_list},
};

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: files CALL COUNT FOLDER\n");
        return 64;
    }
    folder = argv[3];
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(absent, sizeof absent, "%s/absent", folder);
    snprintf(symlink_path, sizeof symlink_path, "%s/link", folder);
    null = open("/dev/null", O_RDWR);
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY);
    if (null < 0 || folder_fd < 0 || chdir(folder) != 0) {
        perror(folder);
        return 1;
    }
    /* One that moves to another CPU finds its caches empty there. */
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    sched_setaffinity(0, sizeof here, &here);
    const unsigned long count = strtoul(argv[2], NULL, 10);
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
        if (strcmp(calls[at].name, argv[1]) != 0) {
            continue;
        }
        const long long begin = now();
        for (unsigned long n = 0; n < count; n++) {
            if (calls[at].call() != 0) {
                perror(argv[1]);
                return 1;
            }
        }
        printf("%lld\n", now() - begin);
        return 0;
    }
    fprintf(stderr, "%s: no such call\n", argv[1]);
    return 64;
}
