/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What engine.c (which knows fio) and src/abi.rs (which knows Butternut) say to each other.
 *
 * Laws:
 *
 * 1. Plain types only: no layout of fio's crosses this line.
 * 2. A call returns 0, or the errno (positive) of what went wrong, and then has written why into
 *    `why`, a C string of at most BUTTERNUT_WHY_BYTES. `why` is never null.
 * 3. Handles are made by one call and freed by its opposite; files and queues go before the volume
 *    that they are of. A queue belongs to one thread at a time.
 * 4. A buffer given to a queue stays where it is, and is the queue's, until its slot is reaped.
 */
#ifndef BUTTERNUT_FIO_H
#define BUTTERNUT_FIO_H

#include <stddef.h>
#include <stdint.h>

#define BUTTERNUT_WHY_BYTES 512

struct butternut_volume;
struct butternut_file;
struct butternut_queue;

/* Which volume, and how. Strings may be null: the default. */
struct butternut_spec {
	const char *devices;	/* DEV[,DEV...] */
	const char *subvolume;	/* a path from the top level, or an id */
	const char *switches;	/* KEY=VALUE[,KEY=VALUE...] */
	uint32_t read_only;	/* nothing will be changed */
};

/* What becomes of space that a file grows by. */
enum butternut_grow {
	BUTTERNUT_GROW_NOTHING = 0,	/* only made, where it is missing */
	BUTTERNUT_GROW_HOLE = 1,
	BUTTERNUT_GROW_ALLOCATED = 2,
	BUTTERNUT_GROW_ALLOCATED_KEEP_SIZE = 3,
};

enum butternut_mode {
	BUTTERNUT_BUFFERED = 0,
	BUTTERNUT_DIRECT = 1,
	BUTTERNUT_UNCACHED = 2,
};

enum butternut_buffers {
	BUTTERNUT_BORROWED = 0,
	BUTTERNUT_OWNED = 1,
};

enum butternut_request {
	BUTTERNUT_READ = 0,
	BUTTERNUT_WRITE = 1,
	BUTTERNUT_SYNC_ALL = 2,
	BUTTERNUT_SYNC_DATA = 3,
};

struct butternut_queue_spec {
	uint32_t depth;		/* slots */
	uint32_t mode;		/* enum butternut_mode */
	uint32_t buffers;	/* enum butternut_buffers */
	uint32_t durable;	/* every write is */
	uint64_t buffer_bytes;	/* the largest request */
};

/* The end of the request in `slot`: bytes that were moved, or minus an errno. */
struct butternut_done {
	uint64_t slot;
	int64_t result;
};

int butternut_volume_open(const struct butternut_spec *spec, struct butternut_volume **volume,
			  char *why);
/* Frees the handle, whatever it returns. The last one of a volume commits it. */
int butternut_volume_close(struct butternut_volume *volume, char *why);

/* ENOENT where there is no such file. */
int butternut_file_bytes(struct butternut_volume *volume, const char *path, uint64_t *bytes,
			 char *why);
/* Makes the file, and the directories above it, where it is missing. */
int butternut_file_make(struct butternut_volume *volume, const char *path, uint32_t in_place,
			char *why);
int butternut_file_unlink(struct butternut_volume *volume, const char *path, char *why);
int butternut_file_open(struct butternut_volume *volume, const char *path,
			struct butternut_file **file, char *why);
void butternut_file_close(struct butternut_file *file);
/* Grows the file to `bytes`, if it is smaller. */
int butternut_file_grow(struct butternut_file *file, uint64_t bytes, uint32_t how, char *why);
int butternut_file_write(struct butternut_file *file, uint64_t offset, const void *from,
			 size_t bytes, char *why);
int butternut_file_sync(struct butternut_file *file, char *why);
int butternut_file_punch(struct butternut_file *file, uint64_t offset, uint64_t bytes, char *why);

int butternut_queue_new(struct butternut_volume *volume, const struct butternut_queue_spec *spec,
			struct butternut_queue **queue, char *why);
/* Waits for what is in flight. */
void butternut_queue_free(struct butternut_queue *queue);
/* The memory of a slot: owned buffers only. It lives as long as the queue. */
int butternut_queue_memory(struct butternut_queue *queue, uint64_t slot, void **memory, char *why);
/* EAGAIN where the queue is full. */
int butternut_queue_add(struct butternut_queue *queue, struct butternut_file *file,
			uint32_t request, uint64_t slot, uint64_t offset, void *buffer,
			size_t bytes, char *why);
int butternut_queue_submit(struct butternut_queue *queue, char *why);
/*
 * Waits until `min` are done, or `nanoseconds` have passed (negative: for ever), and fills at most
 * `max` of `done`; says in `count` how many. `why` is the first failure that was never told, or
 * empty.
 */
int butternut_queue_reap(struct butternut_queue *queue, uint32_t min, uint32_t max,
			 int64_t nanoseconds, struct butternut_done *done, uint32_t *count,
			 char *why);

#endif
