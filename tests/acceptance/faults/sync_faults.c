/* Preloaded into a broker: syncs of files whose path holds FAULTY_PATH fail or take long, as the file
 * FAULTY_SYNC says: "fail", "slow <ms>", or anything else for no fault. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_faulty(int fd) {
    char link[64], path[4096];
    const char *wanted = getenv("FAULTY_PATH");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0 || wanted == NULL) {
        return 0;
    }
    path[size] = '\0';
    return strstr(path, wanted) != NULL;
}

static int faulted(int fd, const char *name) {
    char order[64] = "";
    long ms = 0;
    const char *control = getenv("FAULTY_SYNC");
    FILE *file = control != NULL && is_faulty(fd) ? fopen(control, "r") : NULL;
    if (file != NULL) {
        if (fgets(order, sizeof order, file) == NULL) {
            order[0] = '\0';
        }
        fclose(file);
    }
    if (strncmp(order, "fail", 4) == 0) {
        errno = EIO;
        return -1;
    }
    if (sscanf(order, "slow %ld", &ms) == 1) {
        struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fsync(int fd) { return faulted(fd, "fsync"); }

int fdatasync(int fd) { return faulted(fd, "fdatasync"); }
