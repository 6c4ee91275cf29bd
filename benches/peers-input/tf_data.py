"""tf.data as a candidate: each workload in the fastest form that was found for it."""
import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

from data import BYTES, COLUMNS, FLOATS, ROWS, TOKENS
from measuring import arguments, run, slow_step

what, form, workers, folder, seconds = arguments()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(workers)


def done(data, prefetch=2):
    """A private pool of as many threads as ours has workers."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    options.threading.max_intra_op_parallelism = 1
    return data.prefetch(prefetch).with_options(options)


def files(name):
    return sorted(os.path.join(folder, own) for own in os.listdir(folder) if own.startswith(name))


def small(shuffled):
    spec = {"x": tf.io.FixedLenFeature([FLOATS], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    data = tf.data.TFRecordDataset(files("small")).repeat()
    if shuffled:
        data = data.shuffle(10_000, seed=7)
    # Parses whole batches, several times as fast as single examples.
    data = data.batch(256).map(lambda all: tf.io.parse_example(all, spec), num_parallel_calls=workers)
    return done(data)


def images():
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}

    def one(record):
        example = tf.io.parse_single_example(record, spec)
        bytes_ = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [BYTES])
        return (tf.cast(bytes_, tf.float32) / 255.0 - 0.45) / 0.225, example["y"]

    read = lambda path: tf.data.TFRecordDataset(path)
    data = tf.data.Dataset.from_tensor_slices(files("image"))
    data = data.interleave(read, cycle_length=workers, block_length=32, num_parallel_calls=workers)
    return done(data.map(one, num_parallel_calls=workers).batch(32).repeat())


def rows():
    array = np.load(os.path.join(folder, "rows.npy"))
    assert array.shape == (ROWS, COLUMNS)
    held = tf.constant(array)
    if form == "slices":
        data = tf.data.Dataset.from_tensor_slices(held).shuffle(ROWS, seed=7).batch(256)
    else:
        # Shuffles numbers, and gathers a batch at once.
        data = tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=7).batch(256)
        data = data.map(lambda numbers: tf.gather(held, numbers), num_parallel_calls=workers)
    return done(data.repeat())


def windows():
    tokens = np.memmap(os.path.join(folder, "tokens.u16.bin"), np.uint16, "r")
    held = tf.constant(np.asarray(tokens))

    def batch(numbers):
        starts = tf.random.stateless_uniform([32], [7, numbers], 0, TOKENS - 513, tf.int64)
        places = starts[:, None] + tf.range(513, dtype=tf.int64)[None]
        window = tf.cast(tf.gather(held, places), tf.int64)
        return window[:, :-1], window[:, 1:]

    return done(tf.data.Dataset.range(1 << 40).map(batch, num_parallel_calls=workers))


def slow():
    def one(number):
        time.sleep(0.02)
        return number

    data = tf.data.Dataset.range(1 << 20)
    return done(data.map(lambda number: tf.numpy_function(one, [number], tf.int64)).batch(1))


first = {
    "d1": lambda batch: float(batch["x"][0, 0]),
    "d2": lambda batch: float(batch[0][0, 0]),
    "d3": lambda batch: float(batch[0, 0]),
    "d4": lambda batch: float(batch[0][0, 0]),
}
count = {
    "d1": lambda batch: batch["x"].shape[0],
    "d2": lambda batch: batch[0].shape[0],
    "d3": lambda batch: batch.shape[0],
    "d4": lambda batch: batch[0].shape[0],
}
make = {"d1": lambda: small(False), "d1shuf": lambda: small(True), "d2": images, "d3": rows, "d4": windows}
if what == "d5":
    slow_step(slow, 0.03, int(seconds * 20))
else:
    run(make[what], count[what[:2]], seconds, first[what[:2]])
