/* Write many small files as parts, and name them. For `publish.py`, which has the same in Python.
 *
 * A file takes six system calls. In Python each of them releases the interpreter's lock and competes for it with the threads
 * that decrypt and receive. Here the lock is released once for all files of a frame. If a call fails, Python does that file
 * again and reports the error.
 */
#define _GNU_SOURCE /* O_PATH */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h> /* renameat */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NEW_FILE (O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_CREAT | O_EXCL)

/* What a stat shows of a file, as `durable.Proof` has it; `done` is 1 once all went well. */
typedef struct {
    int64_t done, inode, size, mtime_ns, ctime_ns;
} Seen;

typedef unsigned char *(*Sha256)(const unsigned char *, size_t, unsigned char *);

static int64_t nanoseconds(struct timespec time) { return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec; }

static Seen seen(const struct stat *info) {
    Seen found = {1, (int64_t)info->st_ino, (int64_t)info->st_size, nanoseconds(info->st_mtim), nanoseconds(info->st_ctim)};
    return found;
}

static int write_whole(int handle, const uint8_t *data, uint64_t size) {
    uint64_t at = 0;
    while (at < size) {
        ssize_t done = pwrite(handle, data + at, size - at, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        at += (uint64_t)done;
    }
    return 0;
}

/* The folder of the last file, held open: the kernel then looks up only a name in each call, not a whole path. */
typedef struct {
    const char *place;
    size_t length; /* of its path, with the last slash */
    int handle;
} Folder;

/* Open the folder of `place` in `folder`. Returns the length of its path; 0 if it cannot be opened. */
static size_t enter(Folder *folder, const char *place) {
    const char *slash = strrchr(place, '/');
    size_t length = slash == 0 ? 0 : (size_t)(slash - place) + 1;
    if (folder->handle >= 0 && length == folder->length && memcmp(folder->place, place, length) == 0)
        return length;
    char way[length + 1];
    memcpy(way, place, length);
    way[length] = 0;
    if (folder->handle >= 0)
        close(folder->handle);
    *folder = (Folder){place, length, length == 0 ? -1 : open(way, O_PATH | O_DIRECTORY | O_CLOEXEC)};
    return folder->handle < 0 ? 0 : length;
}

static void leave(const Folder *folder) {
    if (folder->handle >= 0)
        close(folder->handle);
}

/* Write the parts. `places`: paths, each followed by NUL. Bytes of file i: `size[i]` from `data + at[i]` on. `digests`: 32
 * bytes each, if `sha256` is given. An existing file is left alone. */
EXPORT void tm_write_parts(uint64_t count, const char *places, const uint8_t *data, const uint64_t *at, const uint64_t *size,
                           Sha256 sha256, uint8_t *digests, Seen *out) {
    Folder folder = {0, 0, -1};
    for (uint64_t i = 0; i < count; i++, places += strlen(places) + 1) {
        out[i].done = 0;
        if (sha256 != 0 && sha256(data + at[i], size[i], digests + 32 * i) == 0)
            continue;
        size_t name = enter(&folder, places);
        int handle = name == 0 ? -1 : openat(folder.handle, places + name, NEW_FILE, 0644);
        if (handle < 0)
            continue;
        struct stat info;
        int good = write_whole(handle, data + at[i], size[i]) == 0 && fstat(handle, &info) == 0;
        if (close(handle) == 0 && good)
            out[i] = seen(&info);
    }
    leave(&folder);
}

/* Rename one part. Returns whether it matched `known`, has its name now, and is the same file there. */
static int give_name(Folder *folder, const char *part, const char *final, const Seen *known) {
    struct stat info;
    size_t name = enter(folder, part);
    if (name == 0 || strncmp(part, final, name) != 0 || strchr(final + name, '/') != 0)
        return 0;
    part += name;
    final += name;
    if (fstatat(folder->handle, part, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    Seen found = seen(&info);
    if (memcmp(&found, known, sizeof found) != 0 || renameat(folder->handle, part, folder->handle, final) != 0 ||
        fstatat(folder->handle, final, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    found = seen(&info);
    found.ctime_ns = known->ctime_ns;
    return memcmp(&found, known, sizeof found) == 0;
}

/* Rename parts. `pairs`: part and final name, in one folder, each followed by NUL. A part that matches `known` is renamed. It
 * must match afterwards too, except for its ctime, which a rename moves. Stops at the first failure; returns how many
 * succeeded. */
EXPORT uint64_t tm_give_names(uint64_t count, const char *pairs, const Seen *known) {
    Folder folder = {0, 0, -1};
    uint64_t named = 0;
    for (; named < count; named++) {
        const char *part = pairs, *final = part + strlen(part) + 1;
        pairs = final + strlen(final) + 1;
        if (!give_name(&folder, part, final, &known[named]))
            break;
    }
    leave(&folder);
    return named;
}
