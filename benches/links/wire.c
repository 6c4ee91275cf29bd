/* Links between network namespaces, with a delay and a bandwidth each way, made of TUN devices. A
 * stand-in for netem, which not every kernel has.
 *
 *   wire DELAY_US BITS_PER_SECOND NODE NAMESPACE NAMESPACE...
 *
 * The first namespace is 10.9.0.1 then, the second one 10.9.0.2, and so on. Every NODE of them are a
 * node, within which packets pass at once. Says "up" when packets pass, and takes them until its
 * standard input ends. A packet to another node is through when those before it from the same namespace
 * are and its own bits have passed, and arrives the delay later. None is lost: what waits is kept (Linux
 * keeps it within what TCP may send at once). 0 bits a second: any number of them.
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

enum { RING = 1 << 15, LARGEST = 65536, MTU = 9000, MOST = 8 };

struct packet {
    int64_t due;
    int length;
    char *bytes;
};

/* From one end to another. */
struct way {
    unsigned first, last;
    struct packet ring[RING];
};

struct end {
    int device;
    /* When what it sent to other nodes is through. */
    int64_t free;
    struct way to[MOST];
};

static struct end ends[MOST];
static int count;

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

/* Which end a packet is for: the last byte of the address in the header of IPv4; none of another kind. */
static int addressee(const char *bytes, ssize_t length) {
    if (length < 20 || (bytes[0] >> 4) != 4) return -1;
    int to = (unsigned char)bytes[19] - 1;
    return to >= 0 && to < count ? to : -1;
}

/* Reads what there is. */
static void take(int from, int node, int64_t delay, double nanoseconds_per_byte) {
    static char buffer[LARGEST];
    struct end *end = &ends[from];
    for (int taken = 0; taken < 64; taken++) {
        ssize_t length = read(end->device, buffer, sizeof buffer);
        if (length <= 0) return;
        int to = addressee(buffer, length);
        if (to < 0) continue;
        struct way *way = &end->to[to];
        /* It is as if it was lost: TCP sends it again. */
        if (way->last - way->first == RING) continue;
        int64_t due = now();
        if (from / node != to / node) {
            end->free = (end->free > due ? end->free : due) + (int64_t)(length * nanoseconds_per_byte);
            due = end->free + delay;
        }
        struct packet *packet = &way->ring[way->last++ % RING];
        packet->due = due;
        packet->length = length;
        packet->bytes = malloc(length);
        if (!packet->bytes) die("malloc");
        memcpy(packet->bytes, buffer, length);
    }
}

/* Writes what is due; when the next one is. */
static int64_t give(struct way *way, int device) {
    while (way->first != way->last) {
        struct packet *packet = &way->ring[way->first % RING];
        if (packet->due > now()) return packet->due;
        if (write(device, packet->bytes, packet->length) < 0 && errno == EAGAIN) return now();
        free(packet->bytes);
        way->first++;
    }
    return INT64_MAX;
}

int main(int number, char **words) {
    count = number - 4;
    int node = number > 3 ? atoi(words[3]) : 0;
    if (count < 2 || count > MOST || node < 1) {
        fprintf(stderr, "wire DELAY_US BITS_PER_SECOND NODE NAMESPACE NAMESPACE...\n");
        return 2;
    }
    int64_t delay = (int64_t)(atof(words[1]) * 1e3);
    double bits = atof(words[2]), per_byte = bits > 0 ? 8e9 / bits : 0;
    /* So that the machine's other work does not make it a slower link. */
    sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 20});
    for (int i = 0; i < count; i++) {
        char address[16];
        snprintf(address, sizeof address, "10.9.0.%d", i + 1);
        ends[i].device = end_of(words[4 + i], address, MTU);
    }
    puts("up");
    fflush(stdout);
    for (;;) {
        int64_t next = INT64_MAX;
        struct pollfd waits[MOST + 1] = {{.fd = 0, .events = POLLIN}};
        for (int i = 0; i < count; i++) {
            take(i, node, delay, per_byte);
            waits[i + 1] = (struct pollfd){.fd = ends[i].device, .events = POLLIN};
        }
        for (int i = 0; i < count * count; i++) {
            int64_t due = give(&ends[i / count].to[i % count], ends[i % count].device);
            next = due < next ? due : next;
        }
        int64_t left = next == INT64_MAX ? 1000000000LL : next - now();
        if (left < 0) left = 0;
        struct timespec wait = {left / 1000000000LL, left % 1000000000LL};
        if (ppoll(waits, count + 1, &wait, NULL) < 0 && errno != EINTR) die("ppoll");
        char byte;
        if (waits[0].revents && read(0, &byte, 1) <= 0) return 0;
    }
}
