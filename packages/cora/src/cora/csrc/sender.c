/* Sends frames of a file by a device at a steady rate: sender DEVICE RATE SECONDS FILE [SECONDS FILE ...]
 * A file holds records of two bytes of length (little endian) and a frame. Prints frames sent and ns of CPU, as JSON. */
#define _GNU_SOURCE
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define BATCH 32

static unsigned long long clock_ns(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static struct iovec *read_frames(const char *path, size_t *count)
{
	FILE *file = fopen(path, "rb");
	struct iovec *frames = NULL;
	unsigned char head[2];
	size_t room = 0;
	*count = 0;
	while (file && fread(head, 1, 2, file) == 2) {
		if (*count == room)
			frames = realloc(frames, (room = room ? 2 * room : 1024) * sizeof *frames);
		struct iovec one = {NULL, head[0] | head[1] << 8};
		one.iov_base = malloc(one.iov_len);
		if (fread(one.iov_base, 1, one.iov_len, file) != one.iov_len)
			break;
		frames[(*count)++] = one;
	}
	if (file)
		fclose(file);
	return frames;
}

int main(int argc, char **argv)
{
	int fd = socket(AF_PACKET, SOCK_RAW, 0), on = 1;
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(argv[1])};
	double rate = atof(argv[2]);
	unsigned long long sent = 0, failed = 0;
	if (argc < 5 || fd < 0 || bind(fd, (struct sockaddr *)&to, sizeof to))
		return 1;
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
	for (int part = 3; part + 1 < argc; part += 2) {
		size_t count, at = 0;
		struct iovec *frames = read_frames(argv[part + 1], &count);
		struct mmsghdr out[BATCH];
		unsigned long long start = clock_ns(CLOCK_MONOTONIC), done = 0;
		unsigned long long end = start + (unsigned long long)(atof(argv[part]) * 1e9), now;
		if (!count)
			return 1;
		while ((now = clock_ns(CLOCK_MONOTONIC)) < end) {
			unsigned long long due = (now - start) * rate / 1e9;
			if (due < done + BATCH) {
				struct timespec pause = {0, 20000};
				nanosleep(&pause, NULL);
				continue;
			}
			if (due > done + 20000) /* the machine stood still: do not make up for it in one burst */
				start += (due - done - BATCH) * 1e9 / rate;
			memset(out, 0, sizeof out);
			for (int i = 0; i < BATCH; i++) {
				out[i].msg_hdr.msg_iov = &frames[at];
				out[i].msg_hdr.msg_iovlen = 1;
				at = at + 1 < count ? at + 1 : 0;
			}
			int n = sendmmsg(fd, out, BATCH, 0);
			if (n > 0)
				sent += n;
			if (n < BATCH)
				failed += BATCH - (n > 0 ? n : 0);
			done += BATCH;
		}
	}
	printf("{\"sent_packets\": %llu, \"failed_packets\": %llu, \"cpu_ns\": %llu}\n", sent, failed,
	       clock_ns(CLOCK_PROCESS_CPUTIME_ID));
	return 0;
}
