"""The data of all candidates, made once, with seed 7: about 1.1 GB.

Only TensorFlow writes TFRecords here, so that nobody reads what it wrote itself but the peer.
"""
import json
import os

import numpy as np

EXAMPLES, FLOATS, SHARDS = 200_000, 64, 8
IMAGES, BYTES, IMAGE_SHARDS = 4_000, 150_528, 4
ROWS, COLUMNS = 1_000_000, 32
TOKENS, VOCABULARY = 50_000_000, 50_257


def shards(tf, folder, name, count, items, example):
    each = items // count
    for shard in range(count):
        path = os.path.join(folder, "%s-%05d.tfrecord" % (name, shard))
        with tf.io.TFRecordWriter(path) as writer:
            for item in range(shard * each, (shard + 1) * each):
                writer.write(example(item).SerializeToString())


def make(folder):
    stamp = os.path.join(folder, "complete")
    if os.path.exists(stamp):
        return
    import tensorflow as tf

    os.makedirs(folder, exist_ok=True)
    random = np.random.default_rng(7)
    feature = lambda **one: tf.train.Feature(**one)
    floats = random.standard_normal((EXAMPLES, FLOATS), dtype=np.float32)
    shards(tf, folder, "small", SHARDS, EXAMPLES, lambda item: tf.train.Example(
        features=tf.train.Features(feature={
            "x": feature(float_list=tf.train.FloatList(value=floats[item])),
            "y": feature(int64_list=tf.train.Int64List(value=[item])),
        })))
    images = random.integers(0, 256, (64, BYTES), dtype=np.uint8)
    shards(tf, folder, "image", IMAGE_SHARDS, IMAGES, lambda item: tf.train.Example(
        features=tf.train.Features(feature={
            "image": feature(bytes_list=tf.train.BytesList(value=[np.roll(images[item % 64], item).tobytes()])),
            "y": feature(int64_list=tf.train.Int64List(value=[item])),
        })))
    rows = random.standard_normal((ROWS, COLUMNS), dtype=np.float32)
    np.save(os.path.join(folder, "rows.npy"), rows)
    tokens = random.integers(0, VOCABULARY, TOKENS, dtype=np.uint16)
    tokens.tofile(os.path.join(folder, "tokens.u16.bin"))
    with open(os.path.join(folder, "tokens.u16.bin.json"), "w") as told:
        json.dump({"dtype": "u16", "vocabulary": VOCABULARY, "tokens": TOKENS}, told)
    open(stamp, "w").close()


if __name__ == "__main__":
    import sys
    make(sys.argv[1])
