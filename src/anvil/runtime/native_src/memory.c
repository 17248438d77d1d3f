/* memcpy, memmove and memset for kernel libraries: LLVM may call them, and a library has no libc to find them in. */

typedef unsigned long size_t;
typedef unsigned char byte;

__attribute__((visibility("hidden"))) void *memcpy(void *restrict destination, const void *restrict source, size_t n) {
  byte *to = destination;
  const byte *from = source;
  for (size_t i = 0; i < n; i++) to[i] = from[i];
  return destination;
}

__attribute__((visibility("hidden"))) void *memmove(void *destination, const void *source, size_t n) {
  byte *to = destination;
  const byte *from = source;
  if (to <= from) {
    for (size_t i = 0; i < n; i++) to[i] = from[i];
  } else {
    for (size_t i = n; i > 0; i--) to[i - 1] = from[i - 1];
  }
  return destination;
}

__attribute__((visibility("hidden"))) void *memset(void *destination, int value, size_t n) {
  byte *to = destination;
  for (size_t i = 0; i < n; i++) to[i] = (byte)value;
  return destination;
}
