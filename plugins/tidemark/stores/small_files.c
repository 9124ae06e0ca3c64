/* Many small files at a time: written as parts, and given their names. For `small_files.py`, which has the same in Python.
 *
 * A file is six system calls; each of them lets go of the interpreter's lock and has to get it back from the threads that
 * decrypt and receive. Here the lock is let go of once for all files of a frame. Every call that fails ends that file's turn:
 * Python does it again, its own way, and says what is wrong.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

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

/* `places`: one after another, a NUL behind each. Bytes of file i: `size[i]` from `data + at[i]` on. `digests`: 32 bytes
 * each, where there is a `sha256`. A file that is there already is left alone. */
EXPORT void tm_write_parts(uint64_t count, const char *places, const uint8_t *data, const uint64_t *at, const uint64_t *size,
                           Sha256 sha256, uint8_t *digests, Seen *out) {
    for (uint64_t i = 0; i < count; i++, places += strlen(places) + 1) {
        out[i].done = 0;
        if (sha256 != 0 && sha256(data + at[i], size[i], digests + 32 * i) == 0)
            continue;
        int handle = open(places, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_CREAT | O_EXCL, 0644);
        if (handle < 0)
            continue;
        struct stat info;
        int good = write_whole(handle, data + at[i], size[i]) == 0 && fstat(handle, &info) == 0;
        if (close(handle) == 0 && good)
            out[i] = seen(&info);
    }
}

/* `pairs`: part and final name of each, a NUL behind either. A part that is what `known` says gets its name; it must still be
 * the same then, but for its ctime, which a rename moves. In order, up to the first that fails; returns how many did not. */
EXPORT uint64_t tm_give_names(uint64_t count, const char *pairs, const Seen *known) {
    for (uint64_t i = 0; i < count; i++) {
        const char *part = pairs, *final = part + strlen(part) + 1;
        pairs = final + strlen(final) + 1;
        struct stat info;
        if (lstat(part, &info) != 0)
            return i;
        Seen found = seen(&info);
        if (memcmp(&found, &known[i], sizeof found) != 0 || rename(part, final) != 0 || lstat(final, &info) != 0)
            return i;
        found = seen(&info);
        found.ctime_ns = known[i].ctime_ns;
        if (memcmp(&found, &known[i], sizeof found) != 0)
            return i;
    }
    return count;
}
