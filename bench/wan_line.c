/* A long line between two network devices, packet by packet: for `bench/wan.py`.
 *
 *   wan_line DEVICE_A DEVICE_B ONE_WAY_MS MBIT LOSS_PERCENT QUEUE_BYTES SEED
 *
 * Each way on its own: a packet is lost at random, or dropped where the queue is full, else it leaves when the line has
 * serialised all before it, and arrives after the delay. Says "ready" once both devices exist; on SIGTERM it tells what
 * it carried. A proxy of TCP streams cannot do this: it has no packets to lose.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1 << 16, LARGEST = 2048, BURST = 128 };
static const int64_t SECOND = 1000000000;

struct packet {
    int64_t arrives;
    int size;
    unsigned char *bytes;
};

struct way {
    int from, to;
    struct packet queue[SLOTS];
    unsigned first, next;
    int64_t line_free; /* when the last byte of what is queued has left */
    uint64_t carried, lost, dropped;
};

static struct way ways[2];
static volatile sig_atomic_t over;
static uint64_t state;

static void end(int number) { (void)number; over = 1; }

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * SECOND + at.tv_nsec;
}

static double chance(void) { /* splitmix64 */
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static int device(const char *name) {
    struct ifreq request;
    int handle = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (handle < 0 || ioctl(handle, TUNSETIFF, &request) < 0) {
        perror(name);
        exit(1);
    }
    return handle;
}

/* Hand over what has arrived; when the next one will, or `latest`. */
static int64_t deliver(struct way *way, int64_t at, int64_t latest) {
    while (way->first != way->next) {
        struct packet *packet = &way->queue[way->first % SLOTS];
        if (packet->arrives > at)
            return packet->arrives < latest ? packet->arrives : latest;
        if (write(way->to, packet->bytes, (size_t)packet->size) != packet->size)
            way->dropped++;
        free(packet->bytes);
        way->first++;
    }
    return latest;
}

static void take(struct way *way, int64_t at, double byte_ns, int64_t delay, double loss, double most) {
    unsigned char buffer[LARGEST];
    for (int count = 0; count < BURST; count++) {
        ssize_t size = read(way->from, buffer, sizeof buffer);
        if (size <= 0)
            return;
        if (chance() < loss) {
            way->lost++;
            continue;
        }
        int64_t begins = way->line_free > at ? way->line_free : at;
        if ((double)(begins - at) / byte_ns > most || way->next - way->first >= SLOTS) {
            way->dropped++;
            continue;
        }
        way->line_free = begins + (int64_t)((double)size * byte_ns);
        struct packet *packet = &way->queue[way->next++ % SLOTS];
        packet->arrives = way->line_free + delay;
        packet->size = (int)size;
        packet->bytes = malloc((size_t)size);
        if (!packet->bytes)
            exit(1);
        memcpy(packet->bytes, buffer, (size_t)size);
        way->carried++;
    }
}

int main(int count, char **words) {
    if (count != 8)
        return 2;
    int a = device(words[1]), b = device(words[2]);
    int64_t delay = (int64_t)(atof(words[3]) * 1e6);
    double byte_ns = 8000.0 / atof(words[4]), loss = atof(words[5]) / 100, most = atof(words[6]);
    state = strtoull(words[7], NULL, 10);
    ways[0].from = ways[1].to = a;
    ways[0].to = ways[1].from = b;
    signal(SIGTERM, end);
    signal(SIGINT, end);
    puts("ready");
    fflush(stdout);
    while (!over) {
        int64_t at = now(), next = at + SECOND / 20;
        for (int n = 0; n < 2; n++)
            next = deliver(&ways[n], at, next);
        struct pollfd wait[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
        struct timespec left = {0, next > at ? next - at : 0};
        ppoll(wait, 2, &left, NULL);
        at = now();
        for (int n = 0; n < 2; n++)
            take(&ways[n], at, byte_ns, delay, loss, most);
    }
    for (int n = 0; n < 2; n++)
        printf("%llu carried, %llu lost, %llu dropped\n", (unsigned long long)ways[n].carried,
               (unsigned long long)ways[n].lost, (unsigned long long)ways[n].dropped);
    return 0;
}
