// Times compared with cases computed by hand. The clock is frozen: no time depends on the machine.
#include "test.h"

#include "../timing/clock.h"
#include "../timing/timeline.h"

#include <cmath>

// Runs on a device with round numbers.
#define TEST_TIMED(name) TEST_UNDER(name, "time=" SOURCES "/tests/round_numbers.device")

namespace {

using sim::timing::Busy;
using sim::timing::Units;

constexpr double kNow = 1000;

void same(double is, double wanted, const std::string& what) {
  test::that(std::abs(is - wanted) < 1e-6, what + ": " + std::to_string(is) + ", and not " + std::to_string(wanted));
}

// Makes a tensor of `count` bytes.
at::Tensor bytes(int64_t count, int device = 0) {
  return at::empty({count}, test::on(device).dtype(at::kByte));
}

double between(test::Point& from, test::Point& to) {
  to.event.synchronize();
  return from.event.elapsedTime(to.event) / 1e3;
}

}  // namespace

TEST(what_is_free_between_busy_times_is_taken_by_who_fits) {
  Busy busy;
  same(busy.take(0, 10, 0), 0, "the first");
  same(busy.take(50, 10, 0), 50, "one that waits for something");
  same(busy.take(0, 30, 0), 10, "what fits before it");
  same(busy.take(0, 15, 0), 60, "what does not fit into the rest");
  same(busy.take(0, 10, 0), 40, "what fits exactly");
  test::that(busy.pieces() == 1, "0 to 75 is one piece");
  same(busy.take(100, 5, 0), 100, "later");
  same(busy.take(20, 0, 0), 20, "nothing takes no time, and waits for nobody");
  busy.take(200, 1, 150);
  test::that(busy.pieces() == 1, "what is over is forgotten");
}

TEST(units_of_devices_do_not_wait_for_each_other) {
  Units units(3);
  same(units.kernel(0, 0, 10, 0), 0, "a kernel");
  same(units.kernel(0, 0, 10, 0), 10, "the next");
  same(units.kernel(1, 0, 10, 0), 0, "one of another device");
  same(units.copy_in(0, 0, 10, 0), 0, "a copy from the host");
  same(units.copy_out(0, 0, 10, 0), 0, "one to the host");
  same(units.copy_peer(0, 1, 0, 10, 0), 0, "one to another device");
  same(units.copy_peer(0, 2, 0, 10, 0), 0, "over another link");
  same(units.copy_peer(1, 0, 0, 10, 0), 0, "the other way");
  same(units.copy_peer(0, 1, 0, 10, 0), 10, "over the same link");
  same(units.copy_away(0, 0, 10, 0), 0, "to another node");
  same(units.copy_away(0, 0, 10, 0), 10, "to whichever, the next");
  same(units.copy_away(1, 0, 10, 0), 0, "from another device");
}

TEST_TIMED(kernels_take_their_operations_or_their_bytes) {
  sim::timing::freeze(kNow);
  const auto stream = test::new_stream();
  test::Within in(stream);
  const auto a = at::empty({1000, 500}, test::on(0)), b = at::empty({500, 2000}, test::on(0));
  test::Point begin(stream);
  at::mm(a, b);
  test::Point product(stream);
  // 2 * 1000 * 500 * 2000 operations; 14 million bytes would take 14 s
  same(between(begin, product), 1 + 20, "a product");
  const auto square = at::empty({10000, 10000}, test::on(0).dtype(at::kHalf));
  test::Point half_begin(stream);
  at::mm(square, square);
  test::Point half(stream);
  same(between(half_begin, half), 1 + 1000, "a product of short numbers");
  const auto column = at::empty({1000, 1}, test::on(0)), row = at::empty({1, 1000}, test::on(0));
  const auto sums = at::empty({1000, 1000}, test::on(0));
  test::Point outer_begin(stream);
  at::addmm(sums, column, row);
  test::Point outer(stream);
  // 2 million operations, and 2 million numbers and 2000 of 4 bytes.
  same(between(outer_begin, outer), 1 + 8.008, "one with few operations for its bytes");
  auto numbers = bytes(1000000);
  test::Point fill_begin(stream);
  numbers.fill_(1);
  test::Point fill(stream);
  same(between(fill_begin, fill), 1 + 1, "one that only writes");
  numbers.add_(numbers);
  test::Point add(stream);
  same(between(fill, add), 1 + 3, "one that reads twice and writes");
}

TEST_TIMED(attention_of_short_numbers_is_one_kernel) {
  sim::timing::freeze(kNow);
  const auto stream = test::new_stream();
  test::Within in(stream);
  const auto attend = [&](at::ScalarType type) {
    const auto x = at::empty({1, 1, 10000, 64}, test::on(0).dtype(type));
    test::Point begin(stream);
    at::scaled_dot_product_attention(x, x, x, {}, 0, true);
    test::Point end(stream);
    return between(begin, end);
  };
  // Two products of 64 * 10^8 multiplications and additions, half of which are masked.
  same(attend(at::kHalf), 1 + 6.4, "half precision");
  same(attend(at::kBFloat16), 1 + 6.4, "the same with the other half of the bits");
  test::that(attend(at::kFloat) > 2 * 128, "single precision is computed in steps");
}

TEST_TIMED(streams_of_a_device_take_turns_and_fill_gaps) {
  sim::timing::freeze(kNow);
  const auto one = test::new_stream(0), two = test::new_stream(0), other = test::new_stream(1);
  auto mine = bytes(1000000), theirs = bytes(9000000, 1);
  test::Point begin(one), other_begin(other);
  {
    test::Within in(other);
    theirs.fill_(0);  // from 0 to 10
  }
  test::Point other_end(other);
  {
    test::Within in(one);
    other_end.event.block(one);
    mine.fill_(0);  // from 10 to 12
  }
  test::Point after(one);
  test::Point two_begin(two);
  {
    test::Within in(two);
    mine.fill_(0);  // from 0 to 2, before what was submitted earlier
    mine.fill_(0);
    mine.fill_(0);
    mine.fill_(0);
    mine.fill_(0);  // to 10
    mine.fill_(0);  // behind the other stream's, from 12 to 14
  }
  test::Point two_end(two);
  same(between(begin, after), 12, "behind the other device's");
  same(between(two_begin, two_end), 14, "in the gap, and behind it");
  same(between(begin, two_end), 14, "all began at once");
}

TEST_TIMED(copies_take_as_long_as_their_link_beside_kernels) {
  sim::timing::freeze(kNow);
  const auto stream = test::new_stream(0), side = test::new_stream(0);
  auto here = bytes(1000000), there = bytes(1000000, 1), input = bytes(1000000);
  const auto host = at::empty({1000000}, at::TensorOptions().dtype(at::kByte)).pin_memory();
  test::Point begin(stream);
  {
    test::Within in(stream);
    for (int i = 0; i < 5; ++i) {
      here.fill_(0);  // 10 in all
    }
  }
  test::Point kernels(stream);
  test::Point side_begin(side);
  {
    test::Within in(side);
    input.copy_(host, true);
  }
  test::Point copied(side);
  {
    test::Within in(side);
    there.copy_(here, true);
  }
  test::Point sent(side);
  same(between(begin, kernels), 10, "kernels");
  same(between(side_begin, copied), 3 + 10, "from the host");
  same(between(copied, sent), 2 + 1, "to the other device");
  const auto read = there.cpu();
  test::that(read.max().item<int>() == 0, "what is copied to the host is zeros");
  test::that(there.is_cuda() && at::equal(here, input), "values are defined");
}

TEST_TIMED(the_host_waits_until_a_point_is_over) {
  sim::timing::freeze(kNow);
  const auto stream = test::new_stream(0);
  auto numbers = bytes(1000000);
  test::Within in(stream);
  numbers.fill_(0);
  test::Point end(stream);
  test::that(!end.event.query() && !stream.query(), "2 s are not over");
  end.event.synchronize();
  same(sim::timing::now(), kNow + 2, "the host's clock behind the wait");
  test::that(end.event.query() && stream.query(), "now they are");
  numbers.fill_(0);
  same(numbers.sum().item<double>(), 0, "a number");
  // 2 for the fill, 1 + 1 (of 8 bytes more) for the sum, 3 (and 8 bytes) for the number
  same(sim::timing::now(), kNow + 2 + 2 + 2 + 3 + 8 / 1e6 + 8 / 1e5, "the host's clock behind the number");
}

TEST_TIMED(what_waits_for_late_work_begins_when_the_host_submits_it) {
  sim::timing::freeze(kNow);
  const auto stream = test::new_stream(0);
  auto numbers = bytes(1000000);
  test::Within in(stream);
  test::Point begin(stream);
  sim::timing::freeze(kNow + 7);
  numbers.fill_(0);
  test::Point end(stream);
  same(between(begin, end), 7 + 2, "a host that is late");
}
