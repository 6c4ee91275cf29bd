/* A link between two network namespaces, with a delay and a bandwidth each way, made of two TUN
 * devices. A stand-in for netem, which not every kernel has.
 *
 *   wire NAMESPACE NAMESPACE DELAY_US BITS_PER_SECOND [MTU]
 *
 * The first namespace is 10.9.0.1 then, the second one 10.9.0.2. Says "up" when packets pass, and
 * takes them until its standard input ends. A packet is through when those before it are and its
 * own bits have passed, and arrives the delay later. None is lost: what waits is kept (Linux keeps
 * it within what TCP may send at once). 0 bits a second: any number of them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { RING = 1 << 15, LARGEST = 65536 };

struct packet {
    int64_t due;
    int length;
    char *bytes;
};

/* One way. */
struct way {
    int from, to;
    int64_t free;
    unsigned first, last;
    struct packet ring[RING];
};

static struct way ways[2];

static void die(const char *what) {
    fprintf(stderr, "wire: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A device in that namespace. */
static int end_of(const char *name, const char *address, int mtu) {
    char path[256], command[512];
    int own = open("/proc/self/ns/net", O_RDONLY);
    snprintf(path, sizeof path, "/var/run/netns/%s", name);
    int there = open(path, O_RDONLY);
    if (own < 0 || there < 0) die(path);
    if (setns(there, CLONE_NEWNET)) die("setns");
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (device < 0) die("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strcpy(request.ifr_name, "wire");
    if (ioctl(device, TUNSETIFF, &request)) die("TUNSETIFF");
    snprintf(command, sizeof command,
             "ip link set lo up && ip addr add %s/24 dev wire && "
             "ip link set wire mtu %d txqueuelen 20000 up",
             address, mtu);
    if (system(command)) die(command);
    if (setns(own, CLONE_NEWNET)) die("setns");
    close(own);
    close(there);
    return device;
}

/* Reads what there is. */
static void take(struct way *way, int64_t delay, double nanoseconds_per_byte) {
    static char buffer[LARGEST];
    while (way->last - way->first < RING) {
        ssize_t length = read(way->from, buffer, sizeof buffer);
        if (length <= 0) return;
        int64_t at = now();
        way->free = (way->free > at ? way->free : at) + (int64_t)(length * nanoseconds_per_byte);
        struct packet *packet = &way->ring[way->last++ % RING];
        packet->due = way->free + delay;
        packet->length = length;
        packet->bytes = malloc(length);
        if (!packet->bytes) die("malloc");
        memcpy(packet->bytes, buffer, length);
    }
}

/* Writes what is due; when the next one is. */
static int64_t give(struct way *way) {
    while (way->first != way->last) {
        struct packet *packet = &way->ring[way->first % RING];
        if (packet->due > now()) return packet->due;
        if (write(way->to, packet->bytes, packet->length) < 0 && errno == EAGAIN) return now();
        free(packet->bytes);
        way->first++;
    }
    return INT64_MAX;
}

int main(int count, char **words) {
    if (count < 5) {
        fprintf(stderr, "wire NAMESPACE NAMESPACE DELAY_US BITS_PER_SECOND [MTU]\n");
        return 2;
    }
    int64_t delay = (int64_t)(atof(words[3]) * 1e3);
    double bits = atof(words[4]), per_byte = bits > 0 ? 8e9 / bits : 0;
    int mtu = count > 5 ? atoi(words[5]) : 9000;
    /* So that the machine's other work does not make it a slower link. */
    sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 20});
    int ends[2] = {end_of(words[1], "10.9.0.1", mtu), end_of(words[2], "10.9.0.2", mtu)};
    for (int i = 0; i < 2; i++) ways[i].from = ends[i], ways[i].to = ends[1 - i];
    puts("up");
    fflush(stdout);
    for (;;) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < 2; i++) {
            take(&ways[i], delay, per_byte);
            int64_t due = give(&ways[i]);
            next = due < next ? due : next;
        }
        struct pollfd waits[] = {{.fd = ends[0], .events = POLLIN},
                                 {.fd = ends[1], .events = POLLIN},
                                 {.fd = 0, .events = POLLIN}};
        int64_t left = next == INT64_MAX ? 1000000000LL : next - now();
        if (left < 0) left = 0;
        struct timespec wait = {left / 1000000000LL, left % 1000000000LL};
        if (ppoll(waits, 3, &wait, NULL) < 0 && errno != EINTR) die("ppoll");
        char byte;
        if (waits[2].revents && read(0, &byte, 1) <= 0) return 0;
    }
}
