/* A disk that misbehaves, for one process and its children: LD_PRELOAD=bad_disk.so BAD_DISK_IN=/folder and one of
 *   BAD_DISK_QUOTA=bytes     this process may write so many, then EDQUOT
 *   BAD_DISK_FLIP=text       the first byte of each write to a file whose name holds the text is another on the disk
 *   BAD_DISK_UNSYNCED=text   the first sync that this process asks of a file or folder whose name ends so fails: EIO
 *   BAD_DISK_LIE=n           a file has n bytes more (or less) than it has, for whoever asks
 * Files below BAD_DISK_IN alone. Real quotas need a kernel that has them, and a disk that keeps flipping is hard to buy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long long written;

static int ours(const char *path) {
    const char *folder = getenv("BAD_DISK_IN");
    return folder && path && !strncmp(path, folder, strlen(folder));
}

static const char *path_of(int fd, char *room, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, room, size - 1);
    room[got < 0 ? 0 : got] = 0;
    return room;
}

/* What becomes of a write: -1 (errno is set), or the bytes to write instead of `data`, NULL for those. */
static int judged(int fd, const char *data, size_t count, char **other) {
    char room[4096];
    const char *quota = getenv("BAD_DISK_QUOTA"), *flip = getenv("BAD_DISK_FLIP"), *path;
    *other = NULL;
    if ((!quota && !flip) || !ours(path = path_of(fd, room, sizeof room))) return 0;
    if (quota && (written += count) > atoll(quota)) {
        errno = EDQUOT;
        return -1;
    }
    if (flip && count && strstr(path, flip) && !strstr(path, ".blocks") && (*other = malloc(count))) {
        memcpy(*other, data, count);
        **other ^= 1;
    }
    return 0;
}

ssize_t write(int fd, const void *data, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    char *other;
    if (!real) real = dlsym(RTLD_NEXT, "write");
    if (judged(fd, data, count, &other)) return -1;
    ssize_t done = real(fd, other ? other : data, count);
    free(other);
    return done;
}

static ssize_t written_at(const char *name, int fd, const void *data, size_t count, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, name);
    char *other;
    if (judged(fd, data, count, &other)) return -1;
    ssize_t done = real(fd, other ? other : data, count, at);
    free(other);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) { return written_at("pwrite", fd, data, count, at); }
ssize_t pwrite64(int fd, const void *data, size_t count, off_t at) { return written_at("pwrite64", fd, data, count, at); }

int fsync(int fd) {
    static int (*real)(int), told;
    char room[4096];
    const char *end = getenv("BAD_DISK_UNSYNCED"), *path = path_of(fd, room, sizeof room);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    if (end && !told && ours(path) && strlen(path) >= strlen(end) && !strcmp(path + strlen(path) - strlen(end), end)) {
        told = 1;
        errno = EIO;
        return -1;
    }
    return real(fd);
}

static long long lie(const char *path) {
    const char *more = getenv("BAD_DISK_LIE");
    return more && ours(path) ? atoll(more) : 0;
}

#define TOLD(RESULT, PATH)                                                             \
    int result = RESULT;                                                               \
    if (!result && S_ISREG(found->st_mode)) found->st_size += lie(PATH);               \
    return result;
#define BY_PATH(NAME, KIND)                                                            \
    int NAME(const char *path, struct KIND *found) {                                   \
        int (*real)(const char *, struct KIND *) = dlsym(RTLD_NEXT, #NAME);            \
        TOLD(real(path, found), path)                                                  \
    }
#define BY_HANDLE(NAME, KIND)                                                          \
    int NAME(int fd, struct KIND *found) {                                             \
        char room[4096];                                                               \
        int (*real)(int, struct KIND *) = dlsym(RTLD_NEXT, #NAME);                     \
        TOLD(real(fd, found), path_of(fd, room, sizeof room))                          \
    }
#define BESIDE(NAME, KIND)                                                             \
    int NAME(int folder, const char *path, struct KIND *found, int flags) {            \
        char room[4096];                                                               \
        int (*real)(int, const char *, struct KIND *, int) = dlsym(RTLD_NEXT, #NAME);  \
        TOLD(real(folder, path, found, flags), path[0] == '/' ? path : path_of(folder, room, sizeof room)) \
    }

BY_PATH(stat, stat)
BY_PATH(stat64, stat64)
BY_PATH(lstat, stat)
BY_PATH(lstat64, stat64)
BY_HANDLE(fstat, stat)
BY_HANDLE(fstat64, stat64)
BESIDE(fstatat, stat)
BESIDE(fstatat64, stat64)

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *found) {
    char room[4096];
    int (*real)(int, const char *, int, unsigned, struct statx *) = dlsym(RTLD_NEXT, "statx");
    int result = real(folder, path, flags, mask, found);
    if (!result && S_ISREG(found->stx_mode)) found->stx_size += lie(path[0] == '/' ? path : path_of(folder, room, sizeof room));
    return result;
}
