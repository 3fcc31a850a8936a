/* Entry point: picks the subcommand. Owns argv and the exit code, nothing else. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "version")) {
        printf("specd %s\n", SPECD_VERSION);
        return 0;
    }
    fprintf(stderr, "usage: specd serve|generate|bench|tokenize|version\n");
    return 2;
}
