/* A program in C that knows of Serinus what pkg-config says: the bytes of a layout, and a page of
 * the error reference. */
#include <stdio.h>
#include <string.h>

#include <serinus_c.h>

int main(void) {
  if (serinus_c_abi_version() != SERINUS_C_ABI_VERSION) return 1;
  serinus_layout_options options = {.struct_size = sizeof options};
  serinus_layout* layout = NULL;
  if (serinus_layout_create("no_such_layout", &options, &layout) == SERINUS_OK) return 1;
  printf("%s: %s\n", serinus_last_error()->id, serinus_last_error()->message);
  if (serinus_layout_create("fp8_656", &options, &layout) != SERINUS_OK) return 1;
  serinus_layout_destroy(layout);
  printf("serinus %s in C\n", serinus_version());
  return 0;
}
