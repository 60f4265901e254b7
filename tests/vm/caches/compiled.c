// What the workload `build` of `make proof` compiles, many times: @N@ is another number in each file. No headers.
typedef unsigned long word;
struct node { struct node *left, *right; word key, value[@N@]; };
static word state = @N@;

static word next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

#define TREE(NAME, OP)                                                                                            \
	struct node *NAME##_insert(struct node *at, struct node *new)                                                 \
	{                                                                                                             \
		struct node **link = &at;                                                                                 \
		while (*link && (*link)->key != new->key)                                                                 \
			link = new->key < (*link)->key ? &(*link)->left : &(*link)->right;                                    \
		if (!*link)                                                                                               \
			*link = new;                                                                                          \
		for (int i = 0; i < @N@; i++)                                                                             \
			(*link)->value[i] OP next();                                                                          \
		return at;                                                                                                \
	}                                                                                                             \
	word NAME##_sum(const struct node *at)                                                                        \
	{                                                                                                             \
		word sum = 0;                                                                                             \
		if (!at)                                                                                                  \
			return 0;                                                                                             \
		for (int i = 0; i < @N@; i++)                                                                             \
			sum OP at->value[i];                                                                                  \
		switch (sum % 7) {                                                                                        \
		case 0: return NAME##_sum(at->left);                                                                      \
		case 1: return NAME##_sum(at->right) + 1;                                                                 \
		case 2: return sum * at->key;                                                                             \
		case 5: return sum / (at->key | 1);                                                                       \
		default: return NAME##_sum(at->left) ^ NAME##_sum(at->right);                                             \
		}                                                                                                         \
	}

TREE(add, +=)
TREE(sub, -=)
TREE(mix, ^=)
TREE(mul, *=)
TREE(any, |=)
TREE(all, &=)
