/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The interface between engine.c, which includes fio's headers, and src/abi.rs, which calls
 * Butternut.
 *
 * Laws:
 *
 * 1. Plain types only: no structure of fio is passed.
 * 2. A call returns 0 or a positive errno. With an errno, `message` is a C string that says what
 *    failed, of at most BUTTERNUT_MESSAGE_BYTES with its NUL. `message` is never null.
 * 3. Handles are made by one call and freed by its opposite. Files and queues are freed before
 *    their volume. Only one thread uses a queue at a time.
 * 4. A buffer of a request belongs to the queue, and stays allocated, until its slot is reaped.
 */
#ifndef BUTTERNUT_FIO_H
#define BUTTERNUT_FIO_H

#include <stddef.h>
#include <stdint.h>

#define BUTTERNUT_MESSAGE_BYTES 512

struct butternut_volume;
struct butternut_file;
struct butternut_queue;

/* A volume and how to open it. Strings may be null, for the default. */
struct butternut_spec {
	const char *devices;	/* DEV[,DEV...] */
	const char *subvolume;	/* a path from the top level, or an id */
	const char *mount_options;	/* KEY=VALUE[,KEY=VALUE...] */
	uint32_t read_only;	/* open the volume read-only */
};

/* How a file grows. */
enum butternut_grow {
	BUTTERNUT_GROW_NOTHING = 0,	/* keeps its size */
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
	uint32_t durable;	/* every write is O_DSYNC */
	uint64_t buffer_bytes;	/* size of the largest request */
};

/* The completion of the request in `slot`: the number of bytes, or a negative errno. */
struct butternut_done {
	uint64_t slot;
	int64_t result;
};

int butternut_volume_open(const struct butternut_spec *spec, struct butternut_volume **volume,
			  char *message);
/* Frees the handle, also if it fails. Closing the last handle of a volume commits and closes it. */
int butternut_volume_close(struct butternut_volume *volume, char *message);

/* Returns ENOENT if the file does not exist. */
int butternut_file_bytes(struct butternut_volume *volume, const char *path, uint64_t *bytes,
			 char *message);
/* Creates the file and its parent directories where they are missing. */
int butternut_file_make(struct butternut_volume *volume, const char *path, uint32_t in_place,
			char *message);
int butternut_file_unlink(struct butternut_volume *volume, const char *path, char *message);
int butternut_file_open(struct butternut_volume *volume, const char *path,
			struct butternut_file **file, char *message);
void butternut_file_close(struct butternut_file *file);
/* Grows the file to `bytes`, if it is smaller. */
int butternut_file_grow(struct butternut_file *file, uint64_t bytes, uint32_t how, char *message);
int butternut_file_write(struct butternut_file *file, uint64_t offset, const void *from,
			 size_t bytes, char *message);
int butternut_file_sync(struct butternut_file *file, char *message);
int butternut_file_punch(struct butternut_file *file, uint64_t offset, uint64_t bytes,
			 char *message);

int butternut_queue_new(struct butternut_volume *volume, const struct butternut_queue_spec *spec,
			struct butternut_queue **queue, char *message);
/* Waits for the requests in flight, then frees the queue. */
void butternut_queue_free(struct butternut_queue *queue);
/* Returns the memory of a slot with an owned buffer. It is valid until the queue is freed. */
int butternut_queue_memory(struct butternut_queue *queue, uint64_t slot, void **memory,
			   char *message);
/* Returns EAGAIN if the queue is full. */
int butternut_queue_add(struct butternut_queue *queue, struct butternut_file *file,
			uint32_t request, uint64_t slot, uint64_t offset, void *buffer,
			size_t bytes, char *message);
int butternut_queue_submit(struct butternut_queue *queue, char *message);
/*
 * Waits until `min` requests are complete or `nanoseconds` have passed (negative: no limit). Writes
 * at most `max` completions to `done` and their number to `count`. `message` is the message of the
 * queue's first failure, which is returned once, or empty.
 */
int butternut_queue_reap(struct butternut_queue *queue, uint32_t min, uint32_t max,
			 int64_t nanoseconds, struct butternut_done *done, uint32_t *count,
			 char *message);

#endif
