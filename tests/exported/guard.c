// A library for LD_PRELOAD: whoever reads or writes beyond a tensor is ended by SIGSEGV.
//
// libtorch takes the memory of each CPU tensor by posix_memalign. Here it gets pages between two pages
// that nobody may touch. The memory ends at the second one, but for what is left to a multiple of 16
// bytes; with GUARD=below it begins at the first one. What it writes into the rest is seen when the
// memory is given back. Memory that is given back is used again, with its guards.
//
// One block has at most 256 MiB, all together have at most 1 GiB: who asks for more gets none. Small
// blocks are always given, as oneDNN does not look whether it got one for an object of its own: without
// guards behind the first 20,000 at a time, as each takes two of the 65,530 mappings of a process.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define ARENA ((size_t)64 << 30)
#define LARGEST ((size_t)256 << 20)
#define ALL ((size_t)1 << 30)
#define SMALL ((size_t)1 << 20)
#define SLOTS 20000
// What GUARD=above needs not be a multiple of: movaps and its like want 16 bytes.
#define STEP ((size_t)16)
// Blocks up to so many pages are reused by their exact size, larger ones by powers of two.
#define EXACT 64
#define KINDS (EXACT + 32)
#define FILL 0xA5

extern void __libc_free(void*);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

// Pages that one block at a time has.
struct slot {
  char* pages;
  size_t count;
  size_t size;
  char* data;
  struct slot* next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char* arena;
static size_t used;
static size_t live;
static size_t slots;
static int below;
static struct slot* free_slots[KINDS];
// The slot of each page of the arena that begins one.
static struct slot** owners;

static void* reserve(size_t size, int protection) {
  void* made = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? NULL : made;
}

static int begin(void) {
  if (arena != NULL) {
    return 1;
  }
  const char* asked = getenv("GUARD");
  below = asked != NULL && strcmp(asked, "below") == 0;
  owners = reserve(ARENA / PAGE * sizeof *owners, PROT_READ | PROT_WRITE);
  char* made = reserve(ARENA, PROT_NONE);
  if (owners == NULL || made == NULL) {
    return 0;
  }
  used = PAGE;
  __atomic_store_n(&arena, made, __ATOMIC_RELEASE);
  return 1;
}

static size_t kind_of(size_t* count) {
  if (*count <= EXACT) {
    return *count;
  }
  size_t kind = EXACT, power = EXACT;
  while (power < *count) {
    power *= 2;
    kind += 1;
  }
  *count = power;
  return kind;
}

static struct slot* slot_with(size_t count, size_t kind) {
  struct slot* slot = free_slots[kind];
  if (slot != NULL) {
    free_slots[kind] = slot->next;
    return slot;
  }
  size_t size = count * PAGE;
  if (used + size + PAGE > ARENA || slots == SLOTS) {
    return NULL;
  }
  slot = __libc_memalign(STEP, sizeof *slot);
  if (slot == NULL || mprotect(arena + used, size, PROT_READ | PROT_WRITE) != 0) {
    __libc_free(slot);
    return NULL;
  }
  slots += 1;
  slot->pages = arena + used;
  slot->count = count;
  used += size + PAGE;
  for (size_t page = 0; page < count; ++page) {
    owners[(slot->pages - arena) / PAGE + page] = slot;
  }
  return slot;
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  if (alignment < 64 || size == 0) {
    *out = __libc_memalign(alignment, size);
    return *out == NULL ? ENOMEM : 0;
  }
  if (size > LARGEST) {
    return ENOMEM;
  }
  size_t step = alignment > 64 ? alignment : STEP;
  size_t room = (size + step - 1) / step * step;
  size_t count = (room + PAGE - 1) / PAGE;
  size_t kind = kind_of(&count);
  pthread_mutex_lock(&lock);
  struct slot* slot = NULL;
  if (begin() && (size <= SMALL || live + count * PAGE <= ALL)) {
    slot = slot_with(count, kind);
  }
  if (slot != NULL) {
    live += count * PAGE;
    slot->size = size;
    slot->data = below ? slot->pages : slot->pages + count * PAGE - room;
    memset(slot->data + size, FILL, below ? 0 : room - size);
    *out = slot->data;
  }
  pthread_mutex_unlock(&lock);
  if (slot == NULL && size <= SMALL) {
    *out = __libc_memalign(alignment, size);
    return *out == NULL ? ENOMEM : 0;
  }
  return slot == NULL ? ENOMEM : 0;
}

static struct slot* slot_of(void* data) {
  char* start = __atomic_load_n(&arena, __ATOMIC_ACQUIRE);
  if (start == NULL || (char*)data < start || (char*)data >= start + ARENA) {
    return NULL;
  }
  return owners[((char*)data - start) / PAGE];
}

static void wrong(const char* text) {
  ssize_t told = write(2, text, strlen(text));
  (void)told;
  abort();
}

void free(void* data) {
  struct slot* slot = slot_of(data);
  if (slot == NULL) {
    __libc_free(data);
    return;
  }
  if (slot->data != data) {
    wrong("guard: what is given back was not taken\n");
  }
  char* end = slot->pages + slot->count * PAGE;
  for (char* at = slot->data + slot->size; !below && at < end; ++at) {
    if (*at != (char)FILL) {
      wrong("guard: something was written behind a tensor\n");
    }
  }
  pthread_mutex_lock(&lock);
  size_t kind = kind_of(&slot->count);
  if (slot->count > EXACT) {
    madvise(slot->pages, slot->count * PAGE, MADV_DONTNEED);
  }
  slot->data = NULL;
  slot->next = free_slots[kind];
  free_slots[kind] = slot;
  live -= slot->count * PAGE;
  pthread_mutex_unlock(&lock);
}

void* realloc(void* data, size_t size) {
  struct slot* slot = slot_of(data);
  if (slot == NULL) {
    return __libc_realloc(data, size);
  }
  void* made = __libc_memalign(64, size);
  if (made != NULL) {
    memcpy(made, data, size < slot->size ? size : slot->size);
    free(data);
  }
  return made;
}
