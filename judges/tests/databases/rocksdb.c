// Commits transactions to a RocksDB database, and prints its contents.
//
// create DIRECTORY: makes a database with the column families "default" and "b", with counter 0.
// write DIRECTORY: commits one batch, with sync, for each line of the input, "NUMBER COUNTER KEY
//   BODY DELETED", to both column families, and prints "committed NUMBER".
// dump DIRECTORY: recovers the database, verifies all checksums, and prints lines "table|key|body".

#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(char *error) {
    if (error != NULL) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
}

static void put(rocksdb_writebatch_t *batch, rocksdb_column_family_handle_t *family,
                const char *key, const char *body) {
    rocksdb_writebatch_put_cf(batch, family, key, strlen(key), body, strlen(body));
}

int main(int count, char **words) {
    if (count != 3) {
        return 2;
    }
    char *error = NULL;
    const char *names[2] = {"default", "b"};
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, !strcmp(words[1], "create"));
    rocksdb_options_set_create_missing_column_families(options, !strcmp(words[1], "create"));
    rocksdb_options_set_paranoid_checks(options, 1);
    // Small tables, so that there are many flushes and compactions.
    rocksdb_options_set_write_buffer_size(options, 64 << 10);
    rocksdb_options_set_target_file_size_base(options, 64 << 10);
    rocksdb_options_set_max_bytes_for_level_base(options, 256 << 10);
    rocksdb_options_set_level0_file_num_compaction_trigger(options, 2);
    const rocksdb_options_t *family_options[2] = {options, options};
    rocksdb_column_family_handle_t *families[2];
    rocksdb_t *database = rocksdb_open_column_families(options, words[2], 2, names, family_options,
                                                       families, &error);
    check(error);
    rocksdb_writeoptions_t *durable = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(durable, 1);
    if (!strcmp(words[1], "create")) {
        rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
        put(batch, families[0], "00000000", "0");
        put(batch, families[1], "00000000", "0");
        rocksdb_write(database, durable, batch, &error);
        check(error);
        rocksdb_writebatch_destroy(batch);
    } else if (!strcmp(words[1], "write")) {
        static char number[16], counter[16], key[16], body[1 << 16], deleted[16];
        while (scanf("%15s %15s %15s %65535s %15s", number, counter, key, body, deleted) == 5) {
            rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
            for (int at = 0; at < 2; at++) {
                put(batch, families[at], key, body);
                put(batch, families[at], counter, number);
                if (deleted[0] != '-') {
                    rocksdb_writebatch_delete_cf(batch, families[at], deleted, strlen(deleted));
                }
            }
            rocksdb_write(database, durable, batch, &error);
            check(error);
            rocksdb_writebatch_destroy(batch);
            printf("committed %s\n", number);
            fflush(stdout);
        }
    } else {
        rocksdb_readoptions_t *verified = rocksdb_readoptions_create();
        rocksdb_readoptions_set_verify_checksums(verified, 1);
        for (int at = 0; at < 2; at++) {
            rocksdb_iterator_t *rows =
                rocksdb_create_iterator_cf(database, verified, families[at]);
            for (rocksdb_iter_seek_to_first(rows); rocksdb_iter_valid(rows);
                 rocksdb_iter_next(rows)) {
                size_t key_bytes, body_bytes;
                const char *key = rocksdb_iter_key(rows, &key_bytes);
                const char *body = rocksdb_iter_value(rows, &body_bytes);
                printf("%s|%.*s|%.*s\n", at ? "b" : "a", (int)key_bytes, key, (int)body_bytes,
                       body);
            }
            rocksdb_iter_get_error(rows, &error);
            check(error);
            rocksdb_iter_destroy(rows);
        }
    }
    rocksdb_column_family_handle_destroy(families[0]);
    rocksdb_column_family_handle_destroy(families[1]);
    rocksdb_close(database);
    return 0;
}
