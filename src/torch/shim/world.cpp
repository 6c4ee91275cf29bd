// Store and process groups: libtorch's c10d, with gloo on the CPU.
//
// A store is a connection to the run's single server. Its calls block, one at a time: long waits
// use a clone. A group sends and receives tensors; a send moves data once the other side has posted
// the receive, and messages of different tags are independent. All functions may be called on any
// thread, also concurrently on one object.
#define USE_C10D_GLOO
#include "shim.h"

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#ifdef __linux__
#include <linux/filter.h>
#endif
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

using c10d::ProcessGroupGloo;
using Store = c10::intrusive_ptr<c10d::Store>;
using Group = c10::intrusive_ptr<ProcessGroupGloo>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Bytes = std::vector<uint8_t>;

// The class is made here and used there: gloo's own headers are not in the wheel, and with
// another size the stand-ins in `gloo/` would no longer do (libtorch 2.11).
static_assert(sizeof(ProcessGroupGloo) == 488, "c10d::ProcessGroupGloo is not that of libtorch 2.11");

// Makes a write to a closed connection an error instead of the end of the process. Rust programs
// ignore the signal from their start; a library in a C program must do so itself.
void ignore_sigpipe() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) == 0 &&
      current.sa_handler == SIG_DFL) {
    struct sigaction ignored {};
    ignored.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignored, nullptr);
  }
}

using NameOf = int (*)(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);

// Whether this address is in libtorch's code.
bool is_of_libtorch(void* code) {
  Dl_info found{};
  return dladdr(code, &found) != 0 && found.dli_fname != nullptr &&
         std::strstr(found.dli_fname, "libtorch") != nullptr;
}

// Errors are thrown, and reported once where they are caught. c10d also logs them, with C++ stack
// traces, which `TORCH_CPP_LOG_LEVEL` enables again.
void no_stack_traces() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
}

// A socket bound to this port of an IPv4 loopback address (0: to a free one, returned in `port`),
// or -1: the host is a different one, or libtorch is to report the error. libtorch would listen on
// all addresses, and others could reach a store that is for this host alone.
int bound_to_loopback(const char* host, uint16_t& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1 ||
      (ntohl(address.sin_addr.s_addr) >> 24) != IN_LOOPBACKNET) {
    return -1;
  }
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  if (socket < 0) {
    return -1;
  }
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket, plain, size) != 0 || getsockname(socket, plain, &size) != 0) {
    close(socket);
    return -1;
  }
  port = ntohs(address.sin_port);
  return socket;
}

// A process has a connection with each other one, and gloo ends it by SIGABRT where it may open no more
// files: the usual limit of 1024 is no promise to anybody, the hard one is.
void as_many_files_as_allowed() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// The sockets of this process that wait for connections.
std::vector<int> listening() {
  std::vector<int> all;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) {
    return all;
  }
  while (const dirent* entry = readdir(folder)) {
    const int file = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t size = sizeof listens;
    if (file > 2 && getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) {
      all.push_back(file);
    }
  }
  closedir(folder);
  return all;
}

// Makes the kernel drop further connections to a listening socket; existing ones stay. gloo keeps
// each unidentified connection forever, and its event loop fails if the socket is closed.
void accept_no_more(int socket) {
#ifdef __linux__
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  sock_fprog program{1, &drop};
  setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
#else
  (void)socket;
#endif
}

// A device of gloo, and the socket at which it waits for the other processes.
struct Device {
  std::shared_ptr<gloo::transport::Device> own;
  std::vector<int> sockets;
};

Device device(const char* address, bool lazy) {
  // Any socket that begins to listen in between is taken for gloo's: one at a time.
  static std::mutex alone;
  const std::lock_guard<std::mutex> lock(alone);
  const auto before = listening();
  Device made{address == nullptr ? ProcessGroupGloo::createDefaultDevice(lazy)
                                 : ProcessGroupGloo::createDeviceForHostname(address, lazy),
              {}};
  for (const int socket : listening()) {
    if (std::find(before.begin(), before.end(), socket) == before.end()) {
      made.sockets.push_back(socket);
    }
  }
  return made;
}

std::vector<std::string> strings(const char* const* keys, int64_t count) {
  return std::vector<std::string>(keys, keys + count);
}

std::string* text(const Bytes& bytes) { return new std::string(bytes.begin(), bytes.end()); }

}  // namespace

// Replaces libc's function, as a program's own functions precede those of its libraries. libtorch
// looks up the name of each address that a store connects to or hears from, for messages that are
// not read. If a name server does not answer, that takes five seconds each, in which the store
// serves nobody, and all others consider it lost. libtorch gets numbers; other callers get libc's
// result.
extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t size,
                                                                  char* host, socklen_t host_size, char* service,
                                                                  socklen_t service_size, int flags) {
  static const auto of_libc = reinterpret_cast<NameOf>(dlsym(RTLD_NEXT, "getnameinfo"));
  if (of_libc == nullptr) {
    return EAI_FAIL;
  }
  const bool number = is_of_libtorch(__builtin_return_address(0));
  return of_libc(address, size, host, host_size, service, service_size, number ? flags | NI_NUMERICHOST : flags);
}

// Connects to the store at this address, and serves it where this process is to. `timeout_ms`
// is for the connection and for every later call but `gp_store_wait`.
GP_API int gp_store_open(const char* host, uint16_t port, int serves, int64_t timeout_ms,
                         Store** out) {
  return gpipe::guarded([&] {
    ignore_sigpipe();
    no_stack_traces();
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serves != 0;
    // Present processes are counted by keys, which tell the missing ones.
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    // The store closes it.
    if (const int socket = serves != 0 ? bound_to_loopback(host, options.port) : -1; socket >= 0) {
      options.masterListenFd = socket;
    }
    *out = new Store(c10::make_intrusive<c10d::TCPStore>(host, options));
  });
}

// Opens another connection to the same store.
GP_API int gp_store_clone(const Store* store, Store** out) {
  return gpipe::guarded([&] { *out = new Store((*store)->clone()); });
}

// The same connection, with `prefix` and a slash before each key.
GP_API int gp_store_prefix(const Store* store, const char* prefix, Store** out) {
  return gpipe::guarded([&] { *out = new Store(c10::make_intrusive<c10d::PrefixStore>(prefix, *store)); });
}

// The port that the store is reached at, for a server that was given port 0.
GP_API int gp_store_port(const Store* store, uint16_t* out) {
  return gpipe::guarded([&] {
    auto tcp = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(*store);
    TORCH_CHECK(tcp, "a store with a prefix does not say its port");
    *out = tcp->getPort();
  });
}

GP_API int gp_store_set(const Store* store, const char* key, const uint8_t* value, int64_t size) {
  return gpipe::guarded([&] { (*store)->set(key, Bytes(value, value + size)); });
}

// The value of a key; waits for it.
GP_API int gp_store_get(const Store* store, const char* key, std::string** out) {
  return gpipe::guarded([&] { *out = text((*store)->get(key)); });
}

// Waits until all keys exist; `came` is 0 if they do not in time.
GP_API int gp_store_wait(const Store* store, const char* const* keys, int64_t count,
                         int64_t timeout_ms, int* came) {
  return gpipe::guarded([&] {
    try {
      (*store)->wait(strings(keys, count), std::chrono::milliseconds(timeout_ms));
      *came = 1;
    } catch (const c10::DistStoreError&) {
      *came = 0;
    }
  });
}

// Whether all keys exist.
GP_API int gp_store_check(const Store* store, const char* const* keys, int64_t count, int* out) {
  return gpipe::guarded([&] { *out = (*store)->check(strings(keys, count)) ? 1 : 0; });
}

// Adds to a number, which is 0 before, and returns it.
GP_API int gp_store_add(const Store* store, const char* key, int64_t amount, int64_t* out) {
  return gpipe::guarded([&] { *out = (*store)->add(key, amount); });
}

// Sets a key that has no value yet, and returns the value that it has then.
GP_API int gp_store_set_first(const Store* store, const char* key, const uint8_t* value,
                              int64_t size, std::string** out) {
  return gpipe::guarded([&] {
    *out = text((*store)->compareSet(key, Bytes(), Bytes(value, value + size)));
  });
}

// Removes a key.
GP_API int gp_store_remove(const Store* store, const char* key) {
  return gpipe::guarded([&] { (*store)->deleteKey(key); });
}

// Number of keys in the store, including c10d's own.
GP_API int gp_store_count(const Store* store, int64_t* out) {
  return gpipe::guarded([&] { *out = (*store)->getNumKeys(); });
}

GP_API void gp_store_free(Store* store) {
  gpipe::guarded([&] { delete store; });
}

GP_API const char* gp_text_data(const std::string* text) { return text->data(); }
GP_API int64_t gp_text_size(const std::string* text) { return static_cast<int64_t>(text->size()); }
GP_API void gp_text_free(std::string* text) { delete text; }

// Joins a group of `size` processes; returns once all are connected with each other, after which no
// more connections are accepted. `address` is the address of this host for the others, or null to
// use `GLOO_SOCKET_IFNAME` or the host's name.
GP_API int gp_group_new(const Store* store, int rank, int size, const char* address,
                        int64_t timeout_ms, Group** out) {
  return gpipe::guarded([&] {
    ignore_sigpipe();
    as_many_files_as_allowed();
    auto options = ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    auto lazy = c10d::getDefaultGlooLazyInit();
    const auto own = device(address, lazy);
    options->devices.push_back(own.own);
    *out = new Group(c10::make_intrusive<ProcessGroupGloo>(*store, rank, size, options));
    // Lazily connected groups need the socket as long as they exist.
    if (!lazy) {
      std::for_each(own.sockets.begin(), own.sockets.end(), accept_no_more);
    }
  });
}

// Begins to send a tensor, which the work keeps.
GP_API int gp_group_send(const Group* group, const at::Tensor* tensor, int to, int tag, Work** out) {
  return gpipe::guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    *out = new Work((*group)->send(tensors, to, tag));
  });
}

// Begins to receive into a tensor, which the work keeps.
GP_API int gp_group_recv(const Group* group, const at::Tensor* tensor, int from, int tag, Work** out) {
  return gpipe::guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    *out = new Work((*group)->recv(tensors, from, tag));
  });
}

GP_API void gp_group_free(Group* group) {
  gpipe::guarded([&] { delete group; });
}

// Waits for its end; `done` is 0 where it was aborted.
GP_API int gp_work_wait(const Work* work, int64_t timeout_ms, int* done) {
  return gpipe::guarded([&] {
    *done = (*work)->wait(std::chrono::milliseconds(timeout_ms)) ? 1 : 0;
  });
}

// Frees threads that wait for it, now or later.
GP_API int gp_work_abort(const Work* work) {
  return gpipe::guarded([&] { (*work)->abort(); });
}

GP_API void gp_work_free(Work* work) {
  gpipe::guarded([&] { delete work; });
}
