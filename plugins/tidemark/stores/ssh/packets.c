/* AES-GCM packets of one SSH channel, received and decrypted many at a time. For `packets.py`, which has the same in Python.
 *
 * A packet is 32 KB: at each of them Python needs as long as the decryption does, and has to win the interpreter's lock back
 * from the threads that hash and write. Here the lock is let go of until a frame is whole. The cipher is the libcrypto's that
 * Python itself uses; nothing of a packet is believed before its tag fits.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { LENGTH = 4, TAG = 16, HEAD = 10, CHANNEL_DATA = 94, SET_TAG = 0x11 };
enum Why { WHOLE, OTHER, IDLE, ENDED, FAILED, BROKEN };

typedef struct {
    /* of libcrypto: EVP_DecryptInit_ex, EVP_DecryptUpdate, EVP_DecryptFinal_ex, EVP_CIPHER_CTX_ctrl, and a context with its key */
    int (*init)(void *, const void *, void *, const uint8_t *, const uint8_t *);
    int (*update)(void *, uint8_t *, int *, const uint8_t *, int);
    int (*final)(void *, uint8_t *, int *);
    int (*control)(void *, int, int, void *);
    void *context;
    uint8_t *buffer; /* bytes of the socket: those from `at` to `to` are not read yet */
    uint64_t room, at, to;
    uint8_t *slab; /* where data goes, from `end` on; HEAD bytes before it are kept as they are */
    uint64_t slab_room, end, need;
    uint8_t *other; /* a message that is no data: `other_size` bytes, its type first; room for the largest packet */
    uint64_t other_size;
    uint64_t most; /* bytes of data after which to stop though `need` is not reached */
    uint64_t packets, wire; /* read by this call, and their bytes */
    uint64_t counter; /* of the next packet's nonce, whose first four bytes are `fixed` */
    uint8_t fixed[4];
    uint32_t channel, largest;
    int32_t together, woken_for; /* bytes worth waking up for where the frame needs that many; and those we are, or 1 */
    int32_t socket, patience; /* milliseconds */
    int32_t error;            /* errno with FAILED */
} Reader;

static uint32_t big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
}

static int decrypted(Reader *r, const uint8_t *packet, uint32_t length, uint8_t *out) {
    uint8_t nonce[12], last[TAG];
    int done;
    memcpy(nonce, r->fixed, 4);
    for (int i = 0; i < 8; i++)
        nonce[4 + i] = (uint8_t)(r->counter >> (56 - 8 * i));
    return r->init(r->context, 0, 0, 0, nonce) == 1 && r->update(r->context, 0, &done, packet, LENGTH) == 1 &&
           r->update(r->context, out, &done, packet + LENGTH, (int)length) == 1 && done == (int)length &&
           r->control(r->context, SET_TAG, TAG, (void *)(uintptr_t)(packet + LENGTH + length)) == 1 &&
           r->final(r->context, last, &done) == 1;
}

/* The kernel wakes us for `bytes` and no fewer (or for the stream's end). One that cannot do that wakes us for each. */
static void wake_for(Reader *r, int bytes) {
    if (r->woken_for != bytes)
        setsockopt(r->socket, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
    r->woken_for = bytes;
}

/* Have `count` unread bytes in the buffer. WHOLE when there are. */
static enum Why fill(Reader *r, uint64_t count) {
    if (r->at == r->to)
        r->at = r->to = 0;
    if (r->room - r->at < count) {
        memmove(r->buffer, r->buffer + r->at, r->to - r->at);
        r->to -= r->at;
        r->at = 0;
    }
    while (r->to - r->at < count) {
        ssize_t got = recv(r->socket, r->buffer + r->to, r->room - r->to, MSG_DONTWAIT);
        if (got == 0)
            return ENDED;
        if (got > 0) {
            r->to += (uint64_t)got;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR) {
            r->error = errno;
            return FAILED;
        }
        int many = r->need - r->end > (r->to - r->at) + (uint64_t)r->together;
        wake_for(r, many ? r->together : 1);
        struct pollfd wanted = {r->socket, POLLIN, 0};
        if (poll(&wanted, 1, r->patience) == 0)
            return IDLE; /* fewer bytes than it was to wake us for may be there: the next call takes them */
    }
    return WHOLE;
}

static int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static enum Why read_packets(Reader *r) {
    uint64_t begun = r->end;
    int64_t latest = milliseconds() + r->patience;
    while (r->end < r->need && r->end - begun < r->most) {
        if (r->packets && milliseconds() >= latest)
            return WHOLE;
        enum Why why = fill(r, LENGTH);
        if (why != WHOLE)
            return why;
        uint32_t length = big_endian(r->buffer + r->at);
        if (length < 16 || length > r->largest || r->end - HEAD + length > r->slab_room)
            return BROKEN;
        if ((why = fill(r, LENGTH + (uint64_t)length + TAG)) != WHOLE)
            return why;
        uint8_t kept[HEAD], *out = r->slab + r->end - HEAD;
        memcpy(kept, out, HEAD);
        if (!decrypted(r, r->buffer + r->at, length, out))
            return BROKEN;
        r->at += LENGTH + (uint64_t)length + TAG;
        r->wire += LENGTH + (uint64_t)length + TAG;
        r->counter++;
        r->packets++;
        uint32_t padding = out[0], size = big_endian(out + 6);
        if (padding + 2 > length)
            return BROKEN;
        int data = out[1] == CHANNEL_DATA && big_endian(out + 2) == r->channel;
        if (data && (uint64_t)size + HEAD + padding > length)
            return BROKEN;
        if (!data) {
            r->other_size = length - padding - 1;
            memcpy(r->other, out + 1, r->other_size);
        }
        memcpy(out, kept, HEAD);
        if (!data)
            return OTHER;
        r->end += size;
    }
    return WHOLE;
}

/* Read packets until `end` reaches `need` (or `most` bytes of data came), another message came, or the socket has no more.
 * Where that takes longer than `patience` it returns between: who looks whether the line moves has to see that it does. */
EXPORT int tm_read_packets(Reader *r) {
    r->woken_for = 1;
    enum Why why = read_packets(r);
    wake_for(r, 1); /* for whoever reads without us */
    return why;
}
