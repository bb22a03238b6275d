/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The part of the engine that uses fio's headers: options, files, and the callbacks of fio.
 *
 * scripts/fio compiles it against the source of the fio that will load it, because the layout of
 * fio's structures differs between versions. It reaches volumes through butternut_fio.h.
 *
 * Laws:
 *
 * 1. Jobs are threads (thread=1), since an open volume belongs to one process. Jobs that are
 *    processes are refused.
 * 2. The main thread lays the files out before the first job starts, by the rules of fio: with data
 *    if the job reads or overwrites, else as `fallocate` says. The volume is then closed, so that
 *    jobs start with nothing cached.
 * 3. The slot of an io_u is its index in the pool. A slot has at most one request in flight.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fio.h"
#include "optgroup.h"

#include "butternut_fio.h"

/* Bytes per write when files are laid out. */
#define LAYOUT_BYTES (1UL << 20)

struct butternut_options {
	void *pad;		/* fio reads an offset of 0 as "none" */
	char *volume;
	char *subvolume;
	char *mount_options;
	unsigned int mode;
	unsigned int buffers;
	unsigned int nodatacow;
};

/* State of a job, from init to cleanup. */
struct job {
	struct butternut_volume *volume;
	struct butternut_queue *queue;
	unsigned int depth;
	/* Queued since the last commit. */
	struct io_u **queued;
	unsigned int queued_nr;
	/* Reaped, for event(). */
	struct io_u **events;
	struct butternut_done *done;
	bool has_failed;
};

enum { MODE_BY_DIRECT = 0, MODE_DIRECT, MODE_BUFFERED, MODE_UNCACHED };

static struct fio_option options[] = {
	{
		.name	= "volume",
		.lname	= "Devices or images of the volume",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct butternut_options, volume),
		.help	= "DEV[,DEV...]: every device or image of the btrfs volume",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "subvolume",
		.lname	= "Subvolume that file names start from",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct butternut_options, subvolume),
		.help	= "Path from the top level, or id; default: the volume's default",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "mode",
		.lname	= "Lane",
		.type	= FIO_OPT_STR,
		.off1	= offsetof(struct butternut_options, mode),
		.help	= "Lane that requests take; default: direct where direct=1, else buffered",
		.posval	= {
			  { .ival = "direct",
			    .oval = MODE_DIRECT,
			    .help = "Bypass the page cache",
			  },
			  { .ival = "buffered",
			    .oval = MODE_BUFFERED,
			    .help = "Through the page cache",
			  },
			  { .ival = "uncached",
			    .oval = MODE_UNCACHED,
			    .help = "Through the page cache, with drop-behind (RWF_DONTCACHE)",
			  },
		},
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "buffers",
		.lname	= "Owner of the buffers",
		.type	= FIO_OPT_STR,
		.off1	= offsetof(struct butternut_options, buffers),
		.help	= "Which buffers the requests use",
		.def	= "borrowed",
		.posval	= {
			  { .ival = "borrowed",
			    .oval = BUTTERNUT_BORROWED,
			    .help = "Those of fio, which may change during a write",
			  },
			  { .ival = "owned",
			    .oval = BUTTERNUT_OWNED,
			    .help = "Those of the engine, registered with io_uring",
			  },
		},
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "nodatacow",
		.lname	= "New files are written in place",
		.type	= FIO_OPT_BOOL,
		.off1	= offsetof(struct butternut_options, nodatacow),
		.help	= "Files that the job creates have no copy-on-write and no checksums (chattr +C)",
		.def	= "0",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "mount_options",
		.lname	= "Tunables and mount options of the volume",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct butternut_options, mount_options),
		.help	= "KEY=VALUE[,KEY=VALUE...]; the same for all jobs of a volume",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= NULL,
	},
};

/* Logs the message and makes the job fail. Returns 1. */
static int fail(struct thread_data *td, int error, const char *what, const char *name,
		const char *message)
{
	if (name)
		log_err("butternut: %s %s: %s\n", what, name, message);
	else
		log_err("butternut: %s: %s\n", what, message);
	if (!td->error)
		td_verror(td, error, what);
	return 1;
}

static bool only_reads(struct thread_data *td)
{
	return read_only || !(td_write(td) || td_trim(td));
}

static int open_volume(struct thread_data *td, struct butternut_volume **volume)
{
	struct butternut_options *o = td->eo;
	struct butternut_spec spec = {
		.devices = o->volume,
		.subvolume = o->subvolume,
		.mount_options = o->mount_options,
		.read_only = read_only,
	};
	char message[BUTTERNUT_MESSAGE_BYTES];
	int error;

	error = butternut_volume_open(&spec, volume, message);
	if (error)
		return fail(td, error, "open", NULL, message);
	return 0;
}

static int close_volume(struct thread_data *td, struct butternut_volume *volume)
{
	char message[BUTTERNUT_MESSAGE_BYTES];
	int error;

	error = butternut_volume_close(volume, message);
	if (error)
		return fail(td, error, "close", NULL, message);
	return 0;
}

/* --- before the jobs start ------------------------------------------------------------------ */

/* Sets the sizes of the files. A missing file has size 0. */
static int engine_setup(struct thread_data *td)
{
	struct butternut_options *o = td->eo;
	struct butternut_volume *volume;
	char message[BUTTERNUT_MESSAGE_BYTES];
	struct fio_file *f;
	unsigned int i;
	int error, failed = 0;

	if (!td->o.use_thread) {
		fail(td, EINVAL, td->o.name, NULL,
		     "jobs are processes, which cannot share an open volume (set thread=1)");
		return 1;
	}
	if (!o->volume) {
		fail(td, EINVAL, td->o.name, NULL, "no volume (set volume=DEV[,DEV...])");
		return 1;
	}
	if (open_volume(td, &volume))
		return 1;
	for_each_file(td, f, i) {
		uint64_t bytes = 0;

		error = butternut_file_bytes(volume, f->file_name, &bytes, message);
		if (error && error != ENOENT) {
			failed = fail(td, error, "look up", NULL, message);
			break;
		}
		f->filetype = FIO_TYPE_FILE;
		f->real_file_size = bytes;
		fio_file_set_size_known(f);
	}
	return close_volume(td, volume) || failed;
}

static uint32_t growth(struct thread_data *td)
{
	switch (td->o.fallocate_mode) {
	case FIO_FALLOCATE_NONE:
		return BUTTERNUT_GROW_NOTHING;
	case FIO_FALLOCATE_KEEP_SIZE:
		return BUTTERNUT_GROW_ALLOCATED_KEEP_SIZE;
	case FIO_FALLOCATE_TRUNCATE:
		return BUTTERNUT_GROW_HOLE;
	default:
		return BUTTERNUT_GROW_ALLOCATED;
	}
}

/* Writes the range from `from` to `to` of the file with fio's buffer contents. */
static int write_data(struct thread_data *td, struct fio_file *f, struct butternut_file *file,
		     uint64_t from, uint64_t to)
{
	char message[BUTTERNUT_MESSAGE_BYTES];
	int error, failed = 0;
	void *data;

	data = malloc(LAYOUT_BYTES);
	if (!data)
		return fail(td, ENOMEM, "lay out", f->file_name, "no memory");
	while (from < to && !td->terminate) {
		size_t bytes = min((uint64_t) LAYOUT_BYTES - from % LAYOUT_BYTES, to - from);

		fill_io_buffer(td, data, LAYOUT_BYTES, LAYOUT_BYTES);
		error = butternut_file_write(file, from, data, bytes, message);
		if (error) {
			failed = fail(td, error, "lay out", f->file_name, message);
			break;
		}
		from += bytes;
	}
	free(data);
	if (!failed && td->o.create_fsync) {
		error = butternut_file_sync(file, message);
		if (error)
			failed = fail(td, error, "lay out", f->file_name, message);
	}
	return failed;
}

/* Creates a file and grows it to the size that the job uses (law 2). */
static int lay_out(struct thread_data *td, struct butternut_volume *volume, struct fio_file *f)
{
	struct butternut_options *o = td->eo;
	uint64_t had = f->real_file_size, want = f->file_offset + f->io_size;
	bool has_data = td_read(td) || td->o.overwrite;
	struct butternut_file *file;
	char message[BUTTERNUT_MESSAGE_BYTES];
	int error, failed;

	error = butternut_file_make(volume, f->file_name, o->nodatacow, message);
	if (error)
		return fail(td, error, "make", NULL, message);
	error = butternut_file_open(volume, f->file_name, &file, message);
	if (error)
		return fail(td, error, "open", NULL, message);
	failed = 0;
	if (!td->o.fill_device && want > had) {
		if (output_format & FIO_OUTPUT_NORMAL)
			log_info("%s: Laying out IO file %s (%lluMiB)\n", td->o.name,
				 f->file_name, (unsigned long long) (want - had) >> 20);
		/* A file that is written now needs no preallocated space. */
		error = has_data ? 0 : butternut_file_grow(file, want, growth(td), message);
		if (error)
			failed = fail(td, error, "lay out", f->file_name, message);
		else if (has_data)
			failed = write_data(td, f, file, had, want);
		f->real_file_size = want;
	}
	butternut_file_close(file);
	return failed;
}

static bool needs_layout(struct thread_data *td, struct butternut_volume *volume,
			  struct fio_file *f)
{
	uint64_t bytes;
	char message[BUTTERNUT_MESSAGE_BYTES];

	if (f->file_offset + f->io_size > f->real_file_size)
		return true;
	return butternut_file_bytes(volume, f->file_name, &bytes, message) == ENOENT;
}

/* fio calls this for each file, once sizes are known. The first call lays out all files. */
static int engine_prepopulate(struct thread_data *td, struct fio_file *first)
{
	struct butternut_volume *volume;
	struct fio_file *f;
	unsigned int i;
	int failed = 0;

	if (first != td->files[0] || read_only || td->o.create_on_open)
		return 0;
	if (open_volume(td, &volume))
		return 1;
	for_each_file(td, f, i) {
		if (!needs_layout(td, volume, f))
			continue;
		if (!td->o.allow_create) {
			failed = fail(td, ENOENT, "make", f->file_name,
				      "allow_file_create=0 forbids it");
			break;
		}
		failed = lay_out(td, volume, f);
		if (failed)
			break;
	}
	return close_volume(td, volume) || failed;
}

/* --- a job ---------------------------------------------------------------------------------- */

static uint32_t mode_of(struct thread_data *td)
{
	struct butternut_options *o = td->eo;

	switch (o->mode) {
	case MODE_DIRECT:
		return BUTTERNUT_DIRECT;
	case MODE_BUFFERED:
		return BUTTERNUT_BUFFERED;
	case MODE_UNCACHED:
		return BUTTERNUT_UNCACHED;
	default:
		return td->o.odirect ? BUTTERNUT_DIRECT : BUTTERNUT_BUFFERED;
	}
}

static void free_job(struct job *job)
{
	free(job->queued);
	free(job->events);
	free(job->done);
	free(job);
}

static struct job *new_job(unsigned int depth)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->depth = depth;
	job->queued = calloc(depth, sizeof(*job->queued));
	job->events = calloc(depth, sizeof(*job->events));
	job->done = calloc(depth, sizeof(*job->done));
	if (job->queued && job->events && job->done)
		return job;
	free_job(job);
	return NULL;
}

static int engine_init(struct thread_data *td)
{
	struct butternut_options *o = td->eo;
	struct butternut_queue_spec spec = {
		.depth = td->o.iodepth,
		.mode = mode_of(td),
		.buffers = o->buffers,
		.durable = td->o.sync_io != 0,
		.buffer_bytes = td_max_bs(td),
	};
	char message[BUTTERNUT_MESSAGE_BYTES];
	struct job *job;
	int error;

	job = new_job(td->o.iodepth);
	if (!job)
		return fail(td, ENOMEM, td->o.name, NULL, "no memory");
	if (open_volume(td, &job->volume)) {
		free_job(job);
		return 1;
	}
	error = butternut_queue_new(job->volume, &spec, &job->queue, message);
	if (error) {
		fail(td, error, "queue", NULL, message);
		close_volume(td, job->volume);
		free_job(job);
		return 1;
	}
	td->io_ops_data = job;
	return 0;
}

static int engine_io_u_init(struct thread_data *td, struct io_u *io_u)
{
	unsigned int slot = io_u->index;

	/* `index` and `engine_data` share memory in older versions of fio. */
	io_u->engine_data = (void *) (uintptr_t) slot;
	return 0;
}

static uint64_t slot_of(const struct io_u *io_u)
{
	return (uintptr_t) io_u->engine_data;
}

/* Replaces fio's buffers by owned ones, with the same contents. */
static int engine_post_init(struct thread_data *td)
{
	struct butternut_options *o = td->eo;
	struct job *job = td->io_ops_data;
	char message[BUTTERNUT_MESSAGE_BYTES];
	unsigned int i;
	int error;

	if (o->buffers != BUTTERNUT_OWNED)
		return 0;
	for (i = 0; i < td->o.iodepth; i++) {
		struct io_u *io_u = td->io_u_all.io_us[i];
		void *memory;

		if (!io_u->buf)
			continue;
		error = butternut_queue_memory(job->queue, slot_of(io_u), &memory, message);
		if (error)
			return fail(td, error, "buffers", NULL, message);
		memcpy(memory, io_u->buf, td_max_bs(td));
		io_u->buf = memory;
	}
	return 0;
}

static void engine_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	td->io_ops_data = NULL;
	butternut_queue_free(job->queue);
	close_volume(td, job->volume);
	free_job(job);
}

/* --- files of a job ------------------------------------------------------------------------- */

static int engine_open_file(struct thread_data *td, struct fio_file *f)
{
	struct butternut_options *o = td->eo;
	struct job *job = td->io_ops_data;
	struct butternut_file *file;
	char message[BUTTERNUT_MESSAGE_BYTES];
	int error;

	if (!only_reads(td) && td->o.allow_create) {
		error = butternut_file_make(job->volume, f->file_name, o->nodatacow, message);
		if (error)
			return fail(td, error, "make", NULL, message);
	}
	error = butternut_file_open(job->volume, f->file_name, &file, message);
	if (error)
		return fail(td, error, "open", NULL, message);
	FILE_SET_ENG_DATA(f, file);
	return 0;
}

static int engine_close_file(struct thread_data *td, struct fio_file *f)
{
	struct butternut_file *file = FILE_ENG_DATA(f);

	FILE_SET_ENG_DATA(f, NULL);
	f->fd = -1;
	if (file)
		butternut_file_close(file);
	return 0;
}

static int engine_unlink_file(struct thread_data *td, struct fio_file *f)
{
	struct job *job = td->io_ops_data;
	char message[BUTTERNUT_MESSAGE_BYTES];

	if (!job)
		return ENOENT;
	return butternut_file_unlink(job->volume, f->file_name, message);
}

/* Setup set the sizes. Reads the size of a file again if fio does not know it any more. */
static int engine_get_file_size(struct thread_data *td, struct fio_file *f)
{
	struct job *job = td->io_ops_data;
	char message[BUTTERNUT_MESSAGE_BYTES];
	uint64_t bytes;
	int error;

	if (fio_file_size_known(f) || !job)
		return 0;
	error = butternut_file_bytes(job->volume, f->file_name, &bytes, message);
	if (error)
		return fail(td, error, "look up", NULL, message);
	f->real_file_size = bytes;
	fio_file_set_size_known(f);
	return 0;
}

/* --- requests ------------------------------------------------------------------------------- */

/* Logs the first failure of a job; fio counts the others. */
static void log_failure(struct job *job, const char *message)
{
	if (job->has_failed || !message[0])
		return;
	job->has_failed = true;
	log_err("butternut: %s\n", message);
}

static enum fio_q_status trim(struct job *job, struct io_u *io_u)
{
	char message[BUTTERNUT_MESSAGE_BYTES];
	int error;

	error = butternut_file_punch(FILE_ENG_DATA(io_u->file), io_u->offset, io_u->xfer_buflen,
				     message);
	if (error) {
		log_failure(job, message);
		io_u->error = error;
	}
	return FIO_Q_COMPLETED;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	char message[BUTTERNUT_MESSAGE_BYTES];
	uint32_t request;
	int error;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		request = BUTTERNUT_READ;
		break;
	case DDIR_WRITE:
		request = BUTTERNUT_WRITE;
		break;
	case DDIR_SYNC:
		request = BUTTERNUT_SYNC_ALL;
		break;
	case DDIR_DATASYNC:
	case DDIR_SYNC_FILE_RANGE:
		request = BUTTERNUT_SYNC_DATA;
		break;
	case DDIR_TRIM:
		return trim(job, io_u);
	default:
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}
	if (job->queued_nr == job->depth)
		return FIO_Q_BUSY;
	/* Before the call: it completes what goes through the page cache, and syncs. */
	if (fio_fill_issue_time(td))
		fio_gettime(&io_u->issue_time, NULL);
	error = butternut_queue_add(job->queue, FILE_ENG_DATA(io_u->file), request, slot_of(io_u),
				    io_u->offset, io_u->xfer_buf, io_u->xfer_buflen, message);
	if (error == EAGAIN)
		return FIO_Q_BUSY;
	if (error) {
		log_failure(job, message);
		io_u->error = error;
		return FIO_Q_COMPLETED;
	}
	job->queued[job->queued_nr++] = io_u;
	return FIO_Q_QUEUED;
}

static int engine_commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	char message[BUTTERNUT_MESSAGE_BYTES];
	unsigned int i;
	int error;

	if (!job->queued_nr)
		return 0;
	if (fio_fill_issue_time(td)) {
		for (i = 0; i < job->queued_nr; i++)
			io_u_queued(td, job->queued[i]);
		/* Only used when an I/O log is replayed. */
		if (td->o.read_iolog_file)
			memcpy(&td->last_issue, &job->queued[job->queued_nr - 1]->issue_time,
			       sizeof(td->last_issue));
	}
	io_u_mark_submit(td, job->queued_nr);
	job->queued_nr = 0;
	error = butternut_queue_submit(job->queue, message);
	if (error)
		log_failure(job, message);
	return -error;
}

static int engine_getevents(struct thread_data *td, unsigned int least, unsigned int most,
			    const struct timespec *t)
{
	struct job *job = td->io_ops_data;
	int64_t nanoseconds = t ? t->tv_sec * 1000000000LL + t->tv_nsec : -1;
	char message[BUTTERNUT_MESSAGE_BYTES];
	uint32_t count = 0, i;
	int error;

	if (most > job->depth)
		most = job->depth;
	error = butternut_queue_reap(job->queue, least, most, nanoseconds, job->done, &count, message);
	log_failure(job, message);
	if (error)
		return -error;
	for (i = 0; i < count; i++) {
		struct io_u *io_u = td->io_u_all.io_us[job->done[i].slot];
		int64_t result = job->done[i].result;

		if (result < 0)
			io_u->error = -result;
		else if (ddir_rw(io_u->ddir))
			io_u->resid = io_u->xfer_buflen - result;
		job->events[i] = io_u;
	}
	return count;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	struct job *job = td->io_ops_data;

	return job->events[event];
}

struct ioengine_ops ioengine = {
	.name		= "butternut",
	.version	= FIO_IOOPS_VERSION,
	.flags		= FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_NO_OFFLOAD |
			  FIO_ASYNCIO_SYNC_TRIM | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup		= engine_setup,
	.prepopulate_file = engine_prepopulate,
	.init		= engine_init,
	.post_init	= engine_post_init,
	.io_u_init	= engine_io_u_init,
	.cleanup	= engine_cleanup,
	.open_file	= engine_open_file,
	.close_file	= engine_close_file,
	.unlink_file	= engine_unlink_file,
	.get_file_size	= engine_get_file_size,
	.queue		= engine_queue,
	.commit		= engine_commit,
	.getevents	= engine_getevents,
	.event		= engine_event,
	.option_struct_size = sizeof(struct butternut_options),
	.options	= options,
};
